"""Which queues have work, and that somebody wants one pulled: the same on both brokers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.records import Lane, Queue
from tests.conftest import eventually
from tests.congruence.test_broker import LANE, MODEL, eventually_not_queued, pulling, take, work

GPU = Lane(pool="default", bundle="default", profile="l4.large")
BULK = Queue(LANE, "other", "bulk")


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL), (LANE, "other"), (GPU, MODEL)])
    return broker


async def test_a_lane_s_queues_with_work_are_those_where_some_waits_or_is_in_hand(ready: Broker) -> None:
    assert list(await ready.waiting(LANE)) == []
    receipt = await ready.submit(work("a"))
    await ready.submit(work("b", model="other", priority="bulk"))
    await ready.submit(work("c", model="other", priority="bulk"))
    await ready.submit(msgspec.structs.replace(work("d"), lane=GPU))
    assert set(await ready.waiting(LANE)) == {Queue(LANE, MODEL), BULK}
    assert set(await ready.waiting(GPU)) == {Queue(GPU, MODEL)}
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert set(await ready.waiting(LANE)) == {Queue(LANE, MODEL), BULK}
        await delivery.ack()
        await eventually_not_queued(ready, receipt.sequence)
        assert set(await ready.waiting(LANE)) == {BULK}


async def test_nothing_waits_in_a_pool_that_does_not_exist(ready: Broker) -> None:
    assert list(await ready.waiting(Lane("nowhere", "default", "cpu"))) == []


async def test_who_listens_is_told_what_is_wanted_of_its_lane_and_of_no_other(ready: Broker) -> None:
    told: list[Queue] = []
    other: list[Queue] = []
    async with ready.on_wanted(LANE, told.append), ready.on_wanted(GPU, other.append):
        ready.want(Queue(LANE, MODEL))
        ready.want(BULK)
        ready.want(Queue(GPU, MODEL))
        await eventually(lambda: len(told) == 2 and len(other) == 1)
    assert (set(told), other) == ({Queue(LANE, MODEL), BULK}, [Queue(GPU, MODEL)])


async def test_who_listens_no_more_is_told_nothing_and_what_nobody_hears_is_lost(ready: Broker) -> None:
    told: list[Queue] = []
    async with ready.on_wanted(LANE, told.append):
        pass
    ready.want(Queue(LANE, MODEL))
    await ready.waiting(LANE)  # by its answer that is through
    async with ready.on_wanted(LANE, told.append):
        ready.want(BULK)
        await eventually(lambda: bool(told))
    assert told == [BULK]


async def test_what_is_submitted_before_the_look_is_seen_or_told(ready: Broker) -> None:
    """Whoever listens first and looks then misses nothing, however the two coincide."""
    for number in range(10):
        model = Queue(LANE, (MODEL, "other")[number % 2])
        told: list[Queue] = []
        async with ready.on_wanted(LANE, told.append):
            ready.want(model)
            _, seen = await asyncio.gather(ready.submit(work(str(number), model=model.model)), ready.waiting(LANE))
            await eventually(lambda told=told, seen=seen, model=model: model in told or model in seen)  # type: ignore[misc]
