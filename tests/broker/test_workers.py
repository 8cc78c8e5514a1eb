"""The table of heartbeats: age decides, whatever was said."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.records import Lane, WorkerState
from sie_broker.workers import STALE_S, Workers

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
OTHER = Lane(pool="default", bundle="large", profile="cpu")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def beat(worker: str, at: float, state: Literal["starting", "ready", "draining"] = "ready", lane: Lane = LANE) -> bytes:
    return msgspec.msgpack.encode(WorkerState(worker, lane, state, at))


def test_a_worker_counts_as_long_as_its_last_word_is_young() -> None:
    clock = Clock()
    workers = Workers(clock)
    workers.heard("w", beat("w", clock.now))
    clock.now += STALE_S
    assert workers.ready(LANE) == 1
    clock.now += 0.1
    assert workers.ready(LANE) == 0
    assert workers.all() == []


def test_a_heartbeat_that_comes_late_is_as_old_as_it_says() -> None:
    clock = Clock()
    workers = Workers(clock)
    workers.heard("w", beat("w", clock.now - STALE_S - 1))
    assert workers.all() == []


def test_who_says_goodbye_is_gone_and_who_cannot_be_read_was_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    workers = Workers(clock)
    workers.heard("w", beat("w", clock.now))
    assert workers.heard("w", b"?") is None
    assert "heartbeat of w cannot be read" in caplog.text
    assert workers.ready(LANE) == 1
    assert workers.heard("w", None) is None
    assert workers.all() == []


def test_those_who_leave_are_not_present_and_those_who_start_are_not_ready() -> None:
    clock = Clock()
    workers = Workers(clock)
    workers.heard("a", beat("a", clock.now))
    workers.heard("b", beat("b", clock.now, "starting"))
    workers.heard("c", beat("c", clock.now, "draining"))
    workers.heard("d", beat("d", clock.now, lane=OTHER))
    assert (workers.ready(LANE), workers.ready(OTHER)) == (1, 1)
    assert workers.present() == {LANE: 2, OTHER: 1}


async def test_a_table_that_starts_late_reads_who_is_there(broker: Broker) -> None:
    await broker.provision([])
    clock = Clock()
    await broker.beat(WorkerState("w", LANE, "ready", clock.now))
    workers = Workers(clock)
    await workers.read(broker.presence)
    assert workers.ready(LANE) == 1


def test_a_model_is_held_while_a_ready_worker_of_the_lane_that_has_it_was_heard_of_lately() -> None:
    clock = Clock()
    workers = Workers(clock)
    state = WorkerState("w", LANE, "ready", clock.now, models=("org/a", "org/b:adapter"))
    workers.heard("w", msgspec.msgpack.encode(state))
    assert workers.holds(LANE, "org/a") and workers.holds(LANE, "org/b")
    assert not workers.holds(LANE, "org/c") and not workers.holds(OTHER, "org/a")
    clock.now += STALE_S + 0.1
    assert not workers.holds(LANE, "org/a")
    workers.heard("w", msgspec.msgpack.encode(msgspec.structs.replace(state, at=clock.now, models=("org/c",))))
    assert workers.holds(LANE, "org/c") and not workers.holds(LANE, "org/a")
    starting = msgspec.structs.replace(state, at=clock.now, state="starting")
    workers.heard("w", msgspec.msgpack.encode(starting))
    assert not workers.holds(LANE, "org/a")


def test_lanes_that_nobody_serves_are_not_remembered() -> None:
    clock = Clock()
    workers = Workers(clock)
    for number in range(10):
        lane = Lane(f"team-{number}", "minilm", "cpu")
        assert not workers.live(lane) and not workers.holds(lane, "m") and not workers.ready(lane)
        workers.heard("w", beat("w", clock.now, lane=lane))
    assert list(workers._ready) == [lane]
    workers.heard("w", None)
    assert not workers._ready
