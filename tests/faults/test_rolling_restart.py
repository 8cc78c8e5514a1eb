"""Ingresses that are restarted one after the other under load, as a platform does it: nobody is cut."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy
from tests.platform import wait_until

ANSWERED = "sie_ingress_requests_total"
IN_FLIGHT = "sie_ingress_requests_in_flight"
pytestmark = pytest.mark.e2e


def test_a_rolling_restart_of_the_ingresses_cuts_nobody(deploy: Deploy) -> None:
    deployment = deploy(delay_s=0.8)  # an ingress has its requests for three seconds: time to see that it has read them
    deployment.up("ingress-2", "bundle-1", "bundle-2")
    load = Load([deployment.url("ingress"), deployment.url("ingress-2")], 300, 2 * CALLERS)
    for number, name in enumerate(("ingress", "ingress-2")):
        load.await_answered(60 * (number + 1))
        load.avoid(deployment.url(name))  # first it gets no new requests, then it is told to stop
        await_all_read(load, deployment.url(name))
        deployment.stop(name)
        deployment.start(name)
        load.return_to(deployment.url(name))
    again = account(deployment, load)
    assert not again.begun_again
    assert set(load.met) == {"200", "202"}, "held requests became jobs, and none was cut or refused"


def await_all_read(load: Load, url: str) -> None:
    """Return when an ingress has read every request that was sent to it: one in a socket would be cut."""
    wait_until(lambda: read(url) == load.sent[url])


def read(url: str) -> int:
    """Requests that an ingress has begun to read since its start, by its own account."""
    told = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text)
    samples = (one for family in told for one in family.samples if one.labels.get("operation") == "encode")
    return int(sum(one.value for one in samples if one.name in (ANSWERED, IN_FLIGHT)))
