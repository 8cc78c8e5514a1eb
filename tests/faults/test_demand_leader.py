"""The demand holder that leads is killed while a lane starts from zero: another takes over, and no pod too many."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.broker.http_double import SessionServer
from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


async def test_the_next_leader_starts_the_lane_that_a_killed_one_was_starting(deploy: Deploy) -> None:
    deployment = deploy(SIE_COLD_START_S="1")
    pods = SessionServer()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(pods.running())
        demand = {"SIE_DEMAND_URL": url, "SIE_MAX_SCALE": "1"}

        def begin() -> Load:
            deployment.up()
            deployment.start("demand-1", **demand)
            deployment.launch("demand-2", **demand)
            load = Load([deployment.url()], CALLERS)
            wait_until(lambda: len(load.accepted) == CALLERS and pods.open == 1)
            return load

        load = await asyncio.to_thread(begin)
        deployment.kill("demand-1")
        await asyncio.to_thread(wait_until, lambda: pods.open == 0)
        await asyncio.to_thread(deployment.await_ready, "demand-2")
        await asyncio.to_thread(wait_until, lambda: pods.open == 1)
        # The platform's part: the session that is held has a pod started.
        await asyncio.to_thread(deployment.start, "bundle-1")
        again = await asyncio.to_thread(account, deployment, load)
    assert not again.begun_again
    assert pods.most_open == 1, "two leaders would have asked for twice the pods"
