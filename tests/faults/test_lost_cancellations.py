"""A process that is told to stop in the very moment of an answer stops all the same: see `sie_broker.ending`."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.faults.conftest import Deploy
from tests.faults.deployment import before

pytestmark = pytest.mark.e2e

DEAF = Path(__file__).parent / "deaf"


@pytest.mark.parametrize(
    ("name", "request_of_the_broker"),
    # Those at which it went on for ever, or for a minute: of the clock, the pools and the lease.
    [("config", 5), ("config", 27), ("config", 51), ("ingress", 5), ("ingress", 13)],
)
def test_a_process_that_loses_its_cancellation_ends(deploy: Deploy, name: str, request_of_the_broker: int) -> None:
    deployment = deploy()
    deployment.up()
    pool = {"name": "team", "gpus": {"cpu": 1}, "ttl_seconds": 600}
    assert httpx.post(f"{deployment.url('ingress')}/v1/pools", json=pool, timeout=60).status_code == 201
    deployment.stop(name)
    deployment.launch(name, DEAF_AT=str(request_of_the_broker), PYTHONPATH=before(DEAF))
    assert deployment.await_end(name) == 0
