"""A cold start longer than everything that waits for it: the lease, the request, the look at the job."""

from __future__ import annotations

import pytest

from sie_sdk import ProvisioningFailedError, SIEClient
from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy
from tests.faults.deployment import MODEL
from tests.faults.noop_bundle import vector
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


def test_workers_that_do_not_come_are_told_of_and_what_was_queued_waits_for_the_first_that_does(deploy: Deploy) -> None:
    deployment = deploy()
    deployment.up()
    deployment.start("demand", SIE_DEMAND_URL="http://127.0.0.1:1/", SIE_PROVISION_S="2", SIE_QUIET_S="5")
    with SIEClient(deployment.url()) as client:
        with pytest.raises(ProvisioningFailedError, match=r"within 2 s; its Service last answered: All conn") as told:
            client.encode(MODEL, "one", wait_for_capacity=True, deadline_s=60)
        # What is queued keeps the lane asked for, and so it stays given up; what is refused is not queued.
        with pytest.raises(ProvisioningFailedError) as refused:
            client.encode(MODEL, "two", wait_for_capacity=True, deadline_s=60)
        assert "job" in told.value.details and "job" not in refused.value.details
        jobs = [client.job(told.value.details["job"]), client.submit("encode", MODEL, ["three"])]
        deployment.start("bundle-1")
        wait_until(lambda: [lane.failure for lane in client.get_capacity().lanes] == [""])
        rows = [job.result(deadline_s=30)[0] for job in jobs]
    assert [row.dense is not None and row.dense.tolist() for row in rows] == [vector("one"), vector("three")]
    assert len(deployment.recorded("done")) == 2
