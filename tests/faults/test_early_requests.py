"""Requests that reach an ingress before it has read the catalogue: after a crash, or where all starts at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sie_sdk import SIEClient
from tests.faults.conftest import Deploy
from tests.faults.deployment import MODEL, Deployment
from tests.faults.noop_bundle import vector
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


def lives(deployment: Deployment) -> bool:
    """Whether the ingress listens."""
    try:
        return httpx.get(f"{deployment.url()}/livez", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_requests_before_the_first_catalogue_wait_for_it_and_none_is_told_that_there_is_no_such_model(
    deploy: Deploy,
) -> None:
    deployment = deploy()
    deployment.launch("nats-1")
    deployment.launch("ingress")
    wait_until(lambda: lives(deployment))
    with SIEClient(deployment.url()) as client, ThreadPoolExecutor(16) as callers:
        encoded = {
            text: callers.submit(client.encode, MODEL, text, wait_for_capacity=True, deadline_s=60)
            for text in map(str, range(12))
        }
        plain = [callers.submit(httpx.get, f"{deployment.url()}/v1/models/{MODEL}", timeout=30) for _ in range(4)]
        deployment.start("config", "bundle-1")
        for text, call in encoded.items():
            dense = call.result(60).dense
            assert dense is not None and dense.tolist() == vector(text)
        # Whoever is not as patient as the SDK is told to ask again, if the catalogue took longer than a request waits.
        assert {call.result(60).status_code for call in plain} <= {200, 503}
