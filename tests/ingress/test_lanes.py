"""Which lanes are warm and how long cold ones take, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import BELIEVED_S, LaneStatus
from sie_broker.memory import MemoryBroker, MemoryBucket
from sie_broker.records import Lane, WorkerState
from sie_broker.subjects import lane_key
from sie_ingress.lanes import LONGEST_S, LOOK_AT_MOST_S, LOOK_S, SHORTEST_S, Lanes, expected_s
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="default", profile="cpu")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def standing(
    at: float,
    waiting: int,
    rate: float = 10.0,
    wanted: int = 2,
    granted: int = 2,
    missing_since: float = 0.0,
    failure: str = "",
) -> bytes:
    return msgspec.json.encode(LaneStatus(LANE, waiting, rate, True, wanted, 0, at, granted, missing_since, failure))


def beat(at: float, state: Literal["starting", "ready", "draining"] = "ready", worker: str = "w") -> bytes:
    return msgspec.msgpack.encode(WorkerState(worker=worker, lane=LANE, state=state, at=at))


async def test_a_lane_is_live_while_a_ready_worker_beats() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    assert not lanes.live(LANE)
    lanes.heard("w", beat(clock.now, "starting"))
    assert not lanes.live(LANE)
    lanes.heard("w", beat(clock.now))
    assert lanes.live(LANE)
    lanes.heard("w", beat(clock.now, "draining"))
    assert not lanes.live(LANE)


async def test_a_worker_that_stops_beating_is_gone_though_it_never_said_goodbye() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.heard("w", beat(clock.now))
    clock.now += 5.1
    assert not lanes.live(LANE)
    assert lanes.workers() == []


async def test_retry_after_is_the_median_measured_cold_start_less_what_has_passed() -> None:
    clock, broker = Clock(), MemoryBroker()
    lanes = Lanes(broker, 5.0, clock)
    assert await lanes.retry_after(LANE) == 5.0
    for seconds in (30.0, 50.0, 40.0):
        lanes.heard("w", None)
        lanes.woken(LANE)
        clock.now += seconds
        lanes.heard("w", beat(clock.now))
    assert await lanes.retry_after(LANE) == 1.0, "it is up"
    lanes.heard("w", None)
    assert await lanes.retry_after(LANE) == 40.0
    lanes.woken(LANE)
    clock.now += 15.0
    assert await lanes.retry_after(LANE) == 25.0
    clock.now += 100.0
    assert await lanes.retry_after(LANE) == 37.5, "half of what it is late"
    clock.now += 1000.0
    assert await lanes.retry_after(LANE) == LONGEST_S


async def test_an_ingress_that_has_just_started_knows_from_others_how_late_a_lane_is() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.told(lane_status.key(LANE), standing(clock.now, 0, missing_since=clock.now - 65))
    assert await lanes.retry_after(LANE) == 30.0
    assert await lanes.look_again_s(LANE) == LOOK_AT_MOST_S


async def test_what_nobody_has_told_of_for_long_makes_no_lane_late() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.told(lane_status.key(LANE), standing(clock.now, 0, missing_since=clock.now - 65))
    clock.now += BELIEVED_S
    assert await lanes.retry_after(LANE) == 5.0


async def test_a_start_counts_from_the_first_wake() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 30.0, clock)
    lanes.woken(LANE)
    lanes.told(lane_status.key(LANE), standing(clock.now, 0, wanted=0))  # as it stood before
    clock.now += 10.0
    lanes.woken(LANE)
    assert await lanes.retry_after(LANE) == 20.0


async def test_a_worker_that_only_changed_its_pool_says_nothing_of_how_long_starts_take() -> None:
    clock, team = Clock(), msgspec.structs.replace(LANE, pool="team-a")
    lanes = Lanes(MemoryBroker(), 30.0, clock)
    lanes.woken(team)
    clock.now += 2.0
    moved = WorkerState(worker="w", lane=team, state="ready", at=clock.now, home="default")
    lanes.heard("w", msgspec.msgpack.encode(moved))
    lanes.heard("w", None)
    assert await lanes.retry_after(team) == 30.0


async def test_a_wake_that_came_to_nothing_makes_no_later_one_late() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.woken(LANE)
    clock.now += 1000.0
    lanes.told(lane_status.key(LANE), standing(clock.now, 0, wanted=0))
    lanes.woken(LANE)
    clock.now += 1.0
    lanes.told(lane_status.key(LANE), standing(clock.now - 1, 0, wanted=0))
    assert await lanes.retry_after(LANE) == 4.0


async def test_who_asks_again_looks_at_half_of_what_is_left_and_less_often_the_later_it_is() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 4.0, clock)
    lanes.woken(LANE)
    told = []
    for passed in (0.0, 2.0, 1.5, 0.4, 0.1, 4.0, 8.0, 100.0):
        clock.now += passed
        told.append(round(await lanes.look_again_s(LANE), 3))
    assert told == [2.0, 1.0, 0.25, 0.25, 0.25, 1.0, 3.0, LOOK_AT_MOST_S]


@given(st.floats(0, 2000), st.floats(0, 5000))
def test_a_look_is_never_too_soon_nor_too_late(expected: float, passed: float) -> None:
    async def look() -> float:
        clock = Clock()
        lanes = Lanes(MemoryBroker(), expected, clock)
        lanes.woken(LANE)
        clock.now += passed
        return await lanes.look_again_s(LANE)

    assert LOOK_S <= asyncio.run(look()) <= LOOK_AT_MOST_S


async def test_measured_cold_starts_outlive_the_ingress() -> None:
    clock, broker = Clock(), MemoryBroker()
    first = Lanes(broker, 5.0, clock)
    first.woken(LANE)
    clock.now += 12.0
    first.heard("w", beat(clock.now))
    await eventually(lambda: lane_key(LANE) in broker.lanes._values)
    assert await Lanes(broker, 5.0, clock).retry_after(LANE) == 12.0


async def test_a_table_that_starts_late_reads_who_is_there() -> None:
    clock, broker = Clock(), MemoryBroker()
    await broker.presence.put("w", beat(clock.now))
    lanes = Lanes(broker, 5.0, clock)
    following = asyncio.create_task(lanes.follow())
    await eventually(lambda: lanes.live(LANE))
    following.cancel()


waiting = st.integers(0, 10**6)
rates = st.floats(0.001, 10_000)
pods = st.integers(0, 100)
cold = st.floats(0, 1000)


@given(waiting, rates, pods, cold)
def test_a_wait_is_within_what_a_caller_may_be_told_and_no_shorter_for_more_work(
    count: int, rate: float, some: int, cold_s: float
) -> None:
    wait_s = expected_s(count, rate, some, cold_s)
    assert SHORTEST_S <= wait_s <= LONGEST_S
    assert wait_s <= expected_s(count + 1, rate, some, cold_s)
    assert wait_s >= expected_s(count, rate, some + 1, cold_s)
    assert wait_s >= min(LONGEST_S, cold_s)


async def test_a_busy_lane_s_wait_is_its_backlog_over_what_its_pods_do() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.heard("w1", beat(clock.now, worker="w1"))
    lanes.told(lane_status.key(LANE), standing(clock.now, 300))
    assert await lanes.retry_after(LANE) == 30.0
    lanes.heard("w2", beat(clock.now, worker="w2"))
    lanes.heard("w3", beat(clock.now, worker="w3", state="starting"))
    assert await lanes.retry_after(LANE) == 15.0


async def test_a_cold_lane_s_wait_is_its_start_and_then_its_backlog_over_the_pods_that_are_wanted() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.told(lane_status.key(LANE), standing(clock.now, 300))
    assert await lanes.retry_after(LANE) == 20.0
    lanes.told(lane_status.key(LANE), standing(clock.now + 1, 0, wanted=0))
    assert await lanes.retry_after(LANE) == 5.0


async def test_pods_that_are_wanted_and_were_never_had_are_not_counted_on() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    for granted, seconds in ((0, 35.0), (1, 35.0), (3, 15.0), (9, 8.0)):
        clock.now += 1
        lanes.told(lane_status.key(LANE), standing(clock.now, 300, wanted=10, granted=granted))
        assert round(await lanes.retry_after(LANE)) == seconds


async def test_a_lane_is_given_up_while_somebody_tells_so_lately_and_nobody_is_there() -> None:
    clock = Clock()
    lanes, told = Lanes(MemoryBroker(), 5.0, clock), list[Lane]()
    lanes.on_given_up(told.append)
    failed = standing(clock.now, 3, missing_since=clock.now - 900, failure="No worker has come.")
    lanes.told(lane_status.key(LANE), failed)
    assert told == [LANE]
    refusal = lanes.given_up(LANE, "j1")
    assert refusal is not None and refusal.message == "No worker has come."
    assert refusal.details == {"missing_s": 900.0, "job": "j1", "location": "/v1/jobs/j1"}
    assert refusal.retry_after == LONGEST_S
    lanes.heard("w", beat(clock.now))
    assert lanes.given_up(LANE) is None
    lanes.heard("w", None)
    assert lanes.given_up(LANE) is not None
    clock.now += BELIEVED_S
    assert lanes.given_up(LANE) is None


async def test_a_start_that_failed_is_no_measurement_of_how_long_starts_take() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.woken(LANE)
    clock.now += 900
    lanes.told(lane_status.key(LANE), standing(clock.now, 1, missing_since=clock.now - 900, failure="No."))
    lanes.woken(LANE)
    clock.now += 10
    lanes.heard("w", beat(clock.now))
    lanes.heard("w", None)
    lanes.told(lane_status.key(LANE), standing(clock.now, 0, wanted=0))
    assert await lanes.retry_after(LANE) == 5.0


async def test_a_backlog_that_nobody_has_told_of_for_long_is_not_believed() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.told(lane_status.key(LANE), standing(clock.now, 300))
    clock.now += BELIEVED_S
    lanes.heard("w", beat(clock.now))
    assert await lanes.retry_after(LANE) == 1.0
    assert [(status.waiting, status.live) for status in lanes.statuses()] == [(0, 1)]


async def test_an_older_status_or_one_that_cannot_be_read_changes_nothing() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lanes.heard("w", beat(clock.now))
    key = lane_status.key(LANE)
    lanes.told(key, standing(clock.now, 300))
    lanes.told(key, standing(clock.now - 1, 0))
    lanes.told(key, b"?")
    lanes.told(lane_key(LANE), b"[1.0]")
    lanes.told(lane_key(LANE), None)
    assert await lanes.retry_after(LANE) == 30.0
    lanes.told(key, None)
    assert lanes.statuses() == []


async def test_whoever_asked_hears_that_nothing_waits() -> None:
    clock = Clock()
    lanes, drained = Lanes(MemoryBroker(), 5.0, clock), list[tuple[Lane, float]]()
    lanes.on_drained(lambda lane, at: drained.append((lane, at)))
    lanes.told(lane_status.key(LANE), standing(clock.now, 300))
    assert drained == []
    lanes.told(lane_status.key(LANE), standing(clock.now + 2, 0))
    assert drained == [(LANE, clock.now + 2)]


class Bucket(MemoryBucket):
    """Something may happen while it is read, and nobody need be told of it."""

    during: Callable[[], None] | None = None

    async def entries(self, under: str = "") -> dict[str, bytes]:
        found = await super().entries(under)
        if self.during is not None:
            self.during()
        return found


async def test_a_lane_that_went_while_nobody_was_told_is_gone_with_the_next_reading() -> None:
    broker, bucket, clock = MemoryBroker(), Bucket(60), Clock()
    broker.lanes = bucket
    lanes = Lanes(broker, 5.0, clock)
    key = lane_status.key(LANE)
    async with bucket.watch(lanes.told):
        await bucket.put(key, standing(clock.now, 3))
    await bucket.delete(key)
    assert lanes.statuses()
    following = asyncio.create_task(lanes.follow())
    await eventually(lambda: lanes.statuses() == [])
    following.cancel()


@pytest.mark.parametrize("there", [True, False])
async def test_what_is_told_of_a_lane_while_all_are_read_is_newer(there: bool) -> None:
    broker, bucket, clock, read = MemoryBroker(), Bucket(60), Clock(), asyncio.Event()
    broker.lanes = bucket
    lanes = Lanes(broker, 5.0, clock)
    key = lane_status.key(LANE)
    if not there:
        await bucket.put(key, standing(clock.now, 3))

    def during() -> None:
        lanes.told(key, standing(clock.now, 3) if there else None)
        asyncio.get_running_loop().call_soon(read.set)

    bucket.during = during
    following = asyncio.create_task(lanes.follow())
    await read.wait()
    assert bool(lanes.statuses()) == there
    following.cancel()


async def test_a_lane_whose_pool_is_gone_leaves_nothing_behind() -> None:
    clock = Clock()
    lanes = Lanes(MemoryBroker(), 5.0, clock)
    lane = Lane("team-a", "default", "default")
    key, status = lane_status.key(lane), msgspec.json.decode(standing(clock.now, 3), type=LaneStatus)
    for _ in range(2):
        lanes.told(key, msgspec.json.encode(msgspec.structs.replace(status, lane=lane)))
        lanes.woken(lane)
        await lanes.retry_after(lane)
        lanes.told(key, None)
    known = lanes._cold_starts
    assert lane not in {*lanes._statuses, *lanes._workers._ready, *known._taken, *known._woken}


async def test_workers_that_went_without_a_goodbye_leave_nothing_behind() -> None:
    broker, clock = MemoryBroker(), Clock()
    lanes = Lanes(broker, 5.0, clock)
    lanes.heard("w", beat(clock.now))
    clock.now += 60
    following = asyncio.create_task(lanes.follow())
    await eventually(lambda: not lanes._throughput._heard)
    following.cancel()
