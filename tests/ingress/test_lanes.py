"""Which lanes are warm and how long cold ones take, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from sie_broker.contract import Lane, WorkerState
from sie_broker.memory import MemoryBroker
from sie_broker.subjects import lane_key
from sie_ingress.lanes import Lanes
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="default", profile="cpu")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


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
    assert await lanes.retry_after(LANE) == 40.0
    lanes.woken(LANE)
    clock.now += 15.0
    assert await lanes.retry_after(LANE) == 25.0
    clock.now += 100.0
    assert await lanes.retry_after(LANE) == 1.0


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
