"""A cold start longer than everything that waits for it: the lease, the request, the look at the job."""

from __future__ import annotations

import pytest

from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

LOOKS = 5


def test_a_cold_start_longer_than_lease_request_and_poll_answers_everybody_once(deploy: Deploy) -> None:
    deployment = deploy(SIE_ACK_WAIT_S="2", SIE_REQUEST_TIMEOUT_S="1", SIE_COLD_START_S="1")
    deployment.up()
    load = Load([deployment.url()], CALLERS)
    # Each look is held for the request timeout of 1 s, so so many take longer than the lease.
    wait_until(lambda: load.met["202"] >= LOOKS * CALLERS, 60)
    deployment.start("bundle-1")
    again = account(deployment, load)
    assert not again.begun_again
    assert load.answered and set(load.met) == {"200", "202"}


def test_work_that_outlived_its_ingress_and_its_server_is_still_done_by_the_first_worker(deploy: Deploy) -> None:
    deployment = deploy(SIE_COLD_START_S="1")
    deployment.up()
    load = Load([deployment.url()], CALLERS)
    wait_until(lambda: len(load.accepted) == CALLERS, 60)
    deployment.kill("ingress")
    deployment.kill("nats-1")
    deployment.start("nats-1", "ingress", "bundle-1")
    again = account(deployment, load)
    assert not again.computed_again
