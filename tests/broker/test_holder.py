"""The holder's loop on the in-memory broker: what counts as activity, and what an unreadable queue does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import pytest

from sie_broker.demand import lane_status
from sie_broker.demand.holder import HANDED_OVER_S, Holder
from sie_broker.demand.lane_status import LaneStatus
from sie_broker.demand.pods import Policy
from sie_broker.demand.supply import Answer
from sie_broker.memory import MemoryBroker, MemoryBucket
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, Work, WorkerState
from sie_broker.workers import STALE_S
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
POLICY = Policy(max_scale=3, quiet_s=0.15, objective_s=1, pod_rate=2)


class Held:
    """Remembers the last count asked for, per lane."""

    def __init__(self) -> None:
        self.counts: dict[Lane, int] = {}
        self.asked: list[int] = []
        self.cold_ones: list[Lane] = []
        self.said = Answer()

    def hold(self, lane: Lane, count: int) -> None:
        self.counts[lane] = count
        self.asked.append(count)

    def cold(self, services: Collection[Lane]) -> None:
        self.cold_ones = list(services)

    def answer(self, lane: Lane) -> Answer:
        return self.said


class SometimesBlindPresence(MemoryBucket):
    """Its presence, unreadable at the same times."""

    def __init__(self, broker: SometimesBlindBroker) -> None:
        super().__init__()
        self._broker = broker

    async def entries(self, under: str = "") -> dict[str, bytes]:
        if self._broker.blind:
            self._broker.looks += 1
            raise QueueUnavailableError("The broker does not answer.")
        return await super().entries()


class SometimesBlindBroker(MemoryBroker):
    """An in-memory broker whose queues can be made unreadable."""

    blind = False
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self.presence = SometimesBlindPresence(self)

    async def backlog(self) -> dict[Lane, int]:
        self.looks += 1
        if self.blind:
            raise QueueUnavailableError("The broker does not answer.")
        return await super().backlog()


@asynccontextmanager
async def holding(
    broker: MemoryBroker, look_s: float = 0.01, settle_s: float = 0.0, provision_s: float = 900.0
) -> AsyncIterator[Held]:
    held = Held()
    table = PoolTable(broker.pools)
    holder = Holder(broker, table, held, POLICY, look_s, settle_s, provision_s)
    following = asyncio.create_task(table.follow(holder.look))
    running = asyncio.create_task(holder.run())
    try:
        yield held
    finally:
        for task in (running, following):
            task.cancel()
        await asyncio.gather(running, following, return_exceptions=True)


async def submit(broker: MemoryBroker, count: int) -> list[int]:
    works = [Work(id=f"{n}", op="encode", lane=LANE, model="m", data=b"", time=time.time()) for n in range(count)]
    return [(await broker.submit(work)).sequence for work in works]


async def beat(
    broker: MemoryBroker,
    worker: str,
    state: Literal["starting", "ready", "draining"] = "ready",
    age_s: float = 0.0,
    completed: int = 0,
    busy_s: float = 0.0,
) -> None:
    at = time.time() - age_s
    told = WorkerState(worker, LANE, state, at, completed=completed, busy_s=busy_s, full_s=busy_s)
    await broker.presence.put(worker, msgspec.msgpack.encode(told))


async def test_a_backlog_opens_sessions_and_an_empty_queue_closes_them_after_the_quiet_period() -> None:
    broker = MemoryBroker()
    async with holding(broker) as held:
        receipts = await submit(broker, 4)
        await eventually(lambda: held.counts.get(LANE) == 3)
        emptied = time.monotonic()
        for receipt in receipts:
            broker.forget(receipt)
        await eventually(lambda: held.counts[LANE] == 0)
        assert time.monotonic() - emptied >= POLICY.quiet_s - 0.02
        assert held.asked == [3, 0]


async def test_a_wake_opens_the_first_session_without_waiting_for_the_next_look() -> None:
    broker = MemoryBroker()
    async with holding(broker, look_s=30) as held:
        await asyncio.sleep(0)
        await eventually(lambda: bool(broker._wakers))
        broker.wake(LANE)
        await eventually(lambda: held.counts.get(LANE) == 1, deadline_s=20)


async def test_wakes_of_a_lane_that_has_pods_cost_no_look() -> None:
    broker = SometimesBlindBroker()
    async with holding(broker, look_s=30) as held:
        await eventually(lambda: broker.looks == 1)
        broker.wake(LANE)
        await eventually(lambda: held.counts.get(LANE) == 1)
        for _ in range(100):
            broker.wake(LANE)
            await asyncio.sleep(0)
        assert broker.looks == 2


async def test_a_worker_that_completes_work_keeps_its_lane_alive() -> None:
    broker = MemoryBroker()
    async with holding(broker) as held:
        await eventually(lambda: bool(broker.presence._watched_under))

        await beat(broker, "w1")
        for completed in range(1, 30):
            await beat(broker, "w1", completed=completed)
            await asyncio.sleep(0.01)
            assert held.asked in ([], [1])
        await beat(broker, "w1", completed=29)
        await eventually(lambda: held.asked == [1, 0])


async def test_a_queue_that_cannot_be_read_freezes_demand() -> None:
    broker = SometimesBlindBroker()
    async with holding(broker) as held:
        for receipt in await submit(broker, 4):
            await eventually(lambda: held.counts.get(LANE) == 3)
            broker.blind = True
            broker.forget(receipt)
        blinded_at, looks = time.monotonic(), broker.looks
        await eventually(lambda: time.monotonic() - blinded_at > 2 * POLICY.quiet_s and broker.looks > looks)
        assert held.asked == [3]
        broker.blind = False
        await eventually(lambda: held.asked == [3, 0])


async def test_a_wake_starts_the_first_pod_even_when_the_queue_cannot_be_read() -> None:
    broker = SometimesBlindBroker()
    async with holding(broker) as held:
        await eventually(lambda: broker.looks > 0)
        broker.blind = True
        broker.wake(LANE)
        await eventually(lambda: held.counts.get(LANE) == 1)


async def test_a_new_holder_begins_with_those_who_are_up_and_lets_them_go_after_the_quiet_period() -> None:
    broker = MemoryBroker()
    await beat(broker, "w1")
    await beat(broker, "w2", "starting")
    await beat(broker, "leaving", "draining")
    await beat(broker, "gone", age_s=6)
    began = time.monotonic()
    async with holding(broker) as held:
        await eventually(lambda: len(held.asked) == 2)
        assert held.asked == [3, 0]
        assert time.monotonic() - began >= POLICY.quiet_s


async def test_those_who_are_heard_of_only_after_the_take_over_count_too() -> None:
    broker = MemoryBroker()
    async with holding(broker, settle_s=60) as held:
        await eventually(lambda: bool(broker.presence._watched_under))
        await beat(broker, "w1")
        await eventually(lambda: held.asked == [1])
        await beat(broker, "w2")
        await eventually(lambda: held.asked == [1, 3])


async def test_a_new_holder_counts_in_nobody_whom_the_one_before_did_not_want_any_more() -> None:
    broker = MemoryBroker()
    told = LaneStatus(LANE, waiting=0, rate=2.0, measured=False, wanted=1, live=2, at=time.time())
    await broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(told))
    await beat(broker, "stays")
    await beat(broker, "on its way out")  # Knative's queue-proxy keeps SIGTERM from it for 30 s
    async with holding(broker, settle_s=0.2) as held:
        await eventually(lambda: len(held.asked) == 2)
        assert held.asked == [1, 0]


async def test_a_new_holder_asks_for_no_more_than_the_most_a_lane_may_have() -> None:
    broker = MemoryBroker()
    for number in range(POLICY.max_scale + 2):
        await beat(broker, f"w{number}")
    async with holding(broker) as held:
        await eventually(lambda: held.asked[:1] == [2 * POLICY.max_scale - 1])


async def test_a_new_holder_decides_nothing_before_it_knows_who_is_up() -> None:
    broker = SometimesBlindBroker()
    await beat(broker, "w1")
    await submit(broker, 1)
    broker.blind = True
    async with holding(broker) as held:
        await eventually(lambda: broker.looks > 1)
        assert held.asked == []
        broker.blind = False
        await eventually(lambda: held.asked == [1])


def status(broker: MemoryBroker) -> LaneStatus | None:
    kept = broker.lanes._values.get(lane_status.key(LANE))
    return None if kept is None else lane_status.read(kept.value)


def standing(broker: MemoryBroker) -> tuple[int, float, bool, int, int] | None:
    told = status(broker)
    return None if told is None else (told.waiting, told.rate, told.measured, told.wanted, told.live)


async def test_pods_are_counted_by_the_rate_that_was_measured_and_the_next_holder_knows_it() -> None:
    broker = MemoryBroker()
    async with holding(broker) as held:
        await eventually(lambda: bool(broker.presence._watched_under))
        await beat(broker, "w1")
        await beat(broker, "w1", completed=20, busy_s=20.0)  # one a second, not two as was set
        await submit(broker, 3)
        await eventually(lambda: held.counts.get(LANE) == 5)
        await eventually(lambda: standing(broker) == (3, 1.0, True, 3, 1))
    await broker.presence.delete("w1")
    async with holding(broker) as held:
        await eventually(lambda: held.asked == [5])


async def test_a_rate_that_was_only_set_is_not_kept_for_the_next_holder() -> None:
    broker, at = MemoryBroker(), time.time()
    told = LaneStatus(LANE, waiting=0, rate=50.0, measured=False, wanted=0, live=0, at=at)
    await broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(told))
    await submit(broker, 1)
    async with holding(broker):
        await eventually(lambda: standing(broker) == (1, POLICY.pod_rate, False, 1, 0))


async def test_everybody_is_told_how_a_lane_stands_and_that_it_went_to_rest() -> None:
    broker = MemoryBroker()
    async with holding(broker) as held:
        receipts = await submit(broker, 4)
        await eventually(lambda: held.counts.get(LANE) == 3)
        await eventually(lambda: standing(broker) == (4, 2.0, False, 2, 0))
        for receipt in receipts:
            broker.forget(receipt)
        await eventually(lambda: standing(broker) == (0, 2.0, False, 0, 0))


async def test_a_queue_that_cannot_be_read_tells_nothing_of_its_lanes() -> None:
    broker = SometimesBlindBroker()
    await beat(broker, "w1")
    async with holding(broker) as held:
        await eventually(lambda: held.asked == [1])
        before, broker.blind, looks = status(broker), True, broker.looks
        await eventually(lambda: broker.looks > looks + 200)
        assert status(broker) == before


def missing(broker: MemoryBroker) -> tuple[str, float]:
    """Why there is no worker, and since when, as everybody is told."""
    told = status(broker)
    return ("", 0.0) if told is None else (told.failure, told.missing_since)


async def test_a_lane_whose_workers_do_not_come_is_told_as_failed_until_one_does() -> None:
    broker, began = MemoryBroker(), time.time()
    async with holding(broker, provision_s=0.3) as held:
        held.said = Answer("HTTP 504 activator request timeout")
        await submit(broker, 1)
        await eventually(lambda: missing(broker)[0] != "")
        failure, since = missing(broker)
        assert failure.startswith(
            "No worker of minilm on cpu has started within 0.3 s; its Service last answered: HTTP"
        )
        assert began <= since <= time.time() - 0.3
        assert (held.cold_ones, held.asked) == ([LANE], [1]), "its sessions stay open, and are short"
        await beat(broker, "w1")
        await eventually(lambda: missing(broker) == ("", 0.0))
        assert held.cold_ones == []


async def test_a_worker_that_cannot_start_says_why() -> None:
    broker = MemoryBroker()
    async with holding(broker, provision_s=0.3):
        await submit(broker, 1)
        await eventually(lambda: bool(broker.presence._watched_under))
        leaving = WorkerState("w1", LANE, "draining", time.time(), fault="no CUDA")
        await broker.presence.put("w1", msgspec.msgpack.encode(leaving))
        await eventually(lambda: "the last one to try said: no CUDA." in missing(broker)[0])


@pytest.mark.parametrize(("age_s", "failed"), [(1.0, True), (HANDED_OVER_S + 1, False)])
async def test_the_next_holder_goes_on_counting_if_the_one_before_has_only_just_left(
    age_s: float, failed: bool
) -> None:
    broker, at = MemoryBroker(), time.time() - age_s
    before = LaneStatus(LANE, 1, 2.0, False, 1, 0, at, missing_since=at - 1000)
    await broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(before))
    await submit(broker, 1)
    async with holding(broker):
        await eventually(lambda: (told := status(broker)) is not None and told.at > at)
        assert (missing(broker)[0] != "") == failed


async def test_a_queue_that_cannot_be_read_has_no_lane_fail() -> None:
    broker = SometimesBlindBroker()
    async with holding(broker, provision_s=0.3):
        await submit(broker, 1)
        await eventually(lambda: missing(broker)[1] > 0)
        broker.blind, blinded, looks = True, time.time(), broker.looks
        await eventually(lambda: time.time() - blinded > 0.6 and broker.looks > looks)
        broker.blind, seeing = False, time.time()
        await eventually(lambda: missing(broker)[1] >= seeing)


async def test_a_lane_whose_pool_is_gone_is_told_of_no_more_once_nothing_is_left_of_it() -> None:
    broker = MemoryBroker()
    lane = Lane(pool="team-a", bundle="minilm", profile="cpu")
    work = Work(id="w", op="encode", lane=lane, model="m", data=b"", time=time.time())
    receipt = await broker.submit(work)
    async with holding(broker):
        await eventually(lambda: lane_status.key(lane) in broker.lanes._values)
        broker.forget(receipt.sequence)
        await eventually(lambda: lane_status.key(lane) not in broker.lanes._values)


async def test_a_lane_whose_pool_is_gone_leaves_nothing_behind() -> None:
    broker, held, lane = MemoryBroker(), Held(), Lane(pool="team-a", bundle="minilm", profile="cpu")
    table = PoolTable(broker.pools)
    holder = Holder(broker, table, held, POLICY, 0.01, 0.0)
    holder._rates.recall(lane, 3.0)
    receipt = await broker.submit(Work(id="w", op="encode", lane=lane, model="m", data=b"", time=time.time()))
    tasks = [asyncio.create_task(table.follow(holder.look)), asyncio.create_task(holder.run())]
    await eventually(lambda: lane in holder._supply._granted)
    broker.forget(receipt.sequence)
    await eventually(lambda: lane not in holder._demands)
    assert lane not in {*holder._supply._granted, *holder._rates._rates}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_worker_that_went_without_a_goodbye_leaves_nothing_behind() -> None:
    broker = MemoryBroker()
    table = PoolTable(broker.pools)
    holder = Holder(broker, table, Held(), POLICY, 0.01, 0.0)
    tasks = [asyncio.create_task(table.follow(holder.look)), asyncio.create_task(holder.run())]
    await holder.began.wait()
    await beat(broker, "w", age_s=2 * STALE_S, completed=1)
    assert "w" in holder._completed and "w" in holder._rates._heard
    await eventually(lambda: not holder._completed and not holder._rates._heard)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
