"""Clocks that are minutes off, or jump: nobody is refused, taken for dead or answered late because of it."""

from __future__ import annotations

import pytest

from tests.faults.callers import Load, account
from tests.faults.conftest import Deploy
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

OFF_S = 300.0
IN_TIME = {"X-SIE-Expires-In": "60"}
PUBLISHED = {"X-SIE-SDK-Version": "0.6.0"}


@pytest.mark.parametrize("off_s", [-OFF_S, OFF_S], ids=["behind", "ahead"])
@pytest.mark.parametrize("name", ["bundle-1", "ingress"])
def test_a_process_whose_clock_is_off_serves_like_any_other(deploy: Deploy, name: str, off_s: float) -> None:
    deployment = deploy(delay_s=0.02)
    deployment.set_clock(name, off_s)
    deployment.up("bundle-1")
    wait_until(lambda: len(deployment.live_workers()) == 1)
    loads = [Load([deployment.url()], 100, headers=terms) for terms in (IN_TIME, PUBLISHED)]
    again = account(deployment, *loads)
    assert not again.begun_again
    assert [set(load.met) for load in loads] == [{"200"}, {"200"}]
    deployment.kill("bundle-1")
    wait_until(lambda: deployment.live_workers() == [])


def test_clocks_that_jump_under_load_cost_nobody_anything(deploy: Deploy) -> None:
    deployment = deploy(delay_s=0.05)
    names = ("ingress", "bundle-1", "bundle-2")
    for name in names:
        deployment.set_clock(name, 0.0)
    deployment.up("bundle-1", "bundle-2")
    wait_until(lambda: len(deployment.live_workers()) == 2)
    load = Load([deployment.url()], 600, headers=IN_TIME)
    for turn, name in enumerate(names * 2):
        load.await_answered(80 * (turn + 1))
        deployment.set_clock(name, OFF_S if turn % 2 else -OFF_S)
    again = account(deployment, load)
    assert not again.begun_again
    assert set(load.met) == {"200"}
    assert len(deployment.live_workers()) == 2


def test_a_demand_session_with_a_bundle_whose_clock_is_ahead_does_not_end_at_once(deploy: Deploy) -> None:
    deployment = deploy(delay_s=0.02)
    deployment.set_clock("bundle-1", OFF_S)
    deployment.up("bundle-1")
    deployment.start("demand", SIE_DEMAND_URL=deployment.url("bundle-1"), SIE_MAX_SCALE="1")
    wait_until(lambda: "1 up" in deployment.log("demand"))  # for which it holds a session at once
    account(deployment, Load([deployment.url()], 400))
    assert "trying again" not in deployment.log("demand"), "a session ended before its time"
