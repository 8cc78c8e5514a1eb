"""What pools mean for demand: their lanes add up to their Service, a minimum is held, and an end is an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sie_broker.demand.holder import Holder
from sie_broker.demand.pods import Demand, Policy, wanted
from sie_broker.demand.pool_demand import leased, services, terms, unasked
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool import Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, Work, WorkerState
from tests.broker.test_holder import Held, SometimesBlindBroker
from tests.conftest import eventually

POLICY = Policy(max_scale=4, quiet_s=0.15, objective_s=1, pod_rate=2)
HOME, TEAM, OTHER, GOLD = (Lane(name, "default", "cpu") for name in ("default", "team-a", "team-b", "gold"))


def pool(*, most: int = 3, minimum: int = 0, now: float = 1000.0, ttl_s: float = 600.0) -> Pool:
    return Pool("team-a", {"cpu": most}, now, now, ttl_s, minimum=minimum)


def table(*pools: Pool) -> PoolTable:
    made = PoolTable(MemoryBroker().pools)
    made.pools = {each.name: each for each in pools}
    made.homes = {"gold": True}
    return made


# -- the rule ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 6), st.integers(0, 9), st.booleans(), st.integers(0, 4))
def test_what_is_the_least_is_asked_for_whatever_waits(before: int, backlog: int, busy: bool, least: int) -> None:
    after = wanted(Demand(before, 10.0), backlog, busy, 20.0, 11.0, POLICY, least)
    assert after.pods >= min(least, POLICY.max_scale)
    assert after == wanted(Demand(before, 10.0), backlog, busy, 20.0, 11.0, POLICY) or least > 0


def test_a_living_pool_asks_for_its_minimum_and_for_no_more_than_it_may_have() -> None:
    policy, least = terms(TEAM, table(pool(most=2, minimum=1)), POLICY, 1001.0)
    assert (policy.max_scale, policy.quiet_s, least) == (2, POLICY.quiet_s, 1)
    assert terms(TEAM, table(pool(most=9, minimum=9)), POLICY, 1001.0)[0].max_scale == POLICY.max_scale
    assert leased(table(pool(minimum=1)), 1001.0) == {TEAM}
    assert leased(table(pool()), 1001.0) == set()


def test_a_pool_whose_lease_has_ended_keeps_nothing_beyond_what_waits() -> None:
    ended = table(pool(minimum=1))
    policy, least = terms(TEAM, ended, POLICY, 1600.0)
    assert (policy.quiet_s, least) == (0.0, 0)
    assert leased(ended, 1600.0) == set()
    assert terms(TEAM, table(), POLICY, 1001.0) == (policy, 0)


def test_lanes_that_stand_alone_are_left_as_they_are() -> None:
    for lane in (HOME, GOLD):
        assert terms(lane, table(pool(minimum=1)), POLICY, 1001.0) == (POLICY, 0)


def test_the_lanes_of_pools_add_up_to_the_service_their_workers_come_from() -> None:
    assert services({HOME: 1, TEAM: 1, OTHER: 1, GOLD: 2}, table(pool())) == {HOME: 3, GOLD: 2}
    assert services({TEAM: 0}, table()) == {HOME: 0}


@given(
    st.dictionaries(st.sampled_from([HOME, TEAM, OTHER, GOLD]), st.integers(0, 4)),
    st.dictionaries(st.sampled_from([HOME, TEAM, OTHER, GOLD]), st.integers(0, 4)),
)
@example({HOME: 2, TEAM: 2}, {OTHER: 2})
def test_workers_nobody_asked_for_are_those_that_their_service_has_too_many(
    present: dict[Lane, int], asked: dict[Lane, int]
) -> None:
    more = unasked(present, asked, table(pool()))
    assert all(count <= present[lane] - asked.get(lane, 0) for lane, count in more.items())
    there, wanted = services(present, table(pool())), services(asked, table(pool()))
    for own, count in there.items():
        assert services(more, table(pool())).get(own, 0) == max(0, count - wanted.get(own, 0))


# -- the loop ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def holding(broker: MemoryBroker, settle_s: float = 0.0) -> AsyncIterator[tuple[Held, PoolTable, Holder]]:
    held, mirror = Held(), PoolTable(broker.pools)
    holder = Holder(broker, mirror, held, POLICY, 0.01, settle_s)
    tasks = [asyncio.create_task(mirror.follow(holder.look)), asyncio.create_task(holder.run())]
    try:
        yield held, PoolTable(broker.pools), holder
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def work(work_id: str, lane: Lane) -> Work:
    return Work(id=work_id, op="encode", lane=lane, model="m", data=b"", time=time.time())


async def test_a_pools_minimum_is_held_without_any_request_until_its_lease_ends() -> None:
    async with holding(MemoryBroker()) as (held, pools, holder):
        await pools.change("team-a", lambda _: pool(minimum=1, now=time.time()))
        await eventually(lambda: held.counts == {HOME: 1})
        assert holder.pods[TEAM] == 1
        await pools.change("team-a", lambda pool: pool and msgspec.structs.replace(pool, last_renewed=1.0))
        await eventually(lambda: held.counts == {HOME: 0})
        assert holder.pods[TEAM] == 0


async def test_a_pool_and_the_default_pool_ask_for_one_service_together(caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    async with holding(broker) as (held, pools, _):
        await pools.change("team-a", lambda _: pool(minimum=1, now=time.time()))
        await broker.submit(work("a", HOME))
        await eventually(lambda: held.counts == {HOME: 3})
        for number in range(20):
            await broker.submit(work(f"w{number}", TEAM))
        await eventually(lambda: held.counts == {HOME: 7})
        for number in range(20):
            await broker.submit(work(f"h{number}", HOME))
        await eventually(lambda: "7 pods, and 4 is the most" in caplog.text)
        assert held.counts == {HOME: 7}
        assert TEAM not in held.counts


async def test_work_that_waits_in_an_ended_pool_still_asks_for_a_worker() -> None:
    broker = MemoryBroker()
    receipt = await broker.submit(work("last", TEAM))
    async with holding(broker) as (held, pools, _):
        await pools.change("team-a", lambda _: pool(minimum=2, now=1000.0))
        await eventually(lambda: held.counts == {HOME: 1})
        broker.forget(receipt.sequence)
        await eventually(lambda: held.counts == {HOME: 0})


async def test_a_wake_of_a_pool_that_is_gone_asks_for_no_service_of_its_name() -> None:
    broker = MemoryBroker()
    async with holding(broker) as (held, _, _):
        await eventually(lambda: bool(broker._wakers))
        broker.wake(TEAM)
        await eventually(lambda: held.asked == [1, 0])
        assert held.counts.keys() == {HOME}


async def test_a_new_holder_counts_the_workers_of_pools_in_and_lets_go_of_none() -> None:
    broker = MemoryBroker()
    await PoolTable(broker.pools).change("team-a", lambda _: pool(minimum=1, now=time.time()))
    for name, lane in (("w1", TEAM), ("w2", HOME)):
        state = WorkerState(name, lane, "ready", time.time())
        await broker.presence.put(name, msgspec.msgpack.encode(state))
    async with holding(broker, settle_s=60) as (held, _, holder):
        await holder.began.wait()
        assert held.asked == [3]
        assert holder.pods == {TEAM: 1, HOME: 1}


async def test_a_worker_that_a_pool_asked_for_is_not_counted_in_again_while_it_is_in_its_home() -> None:
    broker = SometimesBlindBroker()
    async with holding(broker, settle_s=60) as (held, pools, holder):
        await holder.began.wait()
        await pools.change("team-a", lambda _: pool(minimum=2, now=time.time()))
        await eventually(lambda: held.asked == [3])
        for name, lane in (("new", HOME), ("assigned", TEAM)):
            state = WorkerState(name, lane, "ready", time.time())
            await broker.presence.put(name, msgspec.msgpack.encode(state))
        await eventually(lambda: len(holder._workers.all()) == 2)
        looks = broker.looks
        await eventually(lambda: broker.looks > looks + 2)
        assert held.asked == [3]
        assert holder.pods[TEAM] == 2
