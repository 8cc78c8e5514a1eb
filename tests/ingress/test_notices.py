"""Notices: workers are told of what none of them has loaded, not of the rest, and not for each of many requests."""

from __future__ import annotations

import msgspec

from sie_broker import clock
from sie_broker.memory import MemoryBroker
from sie_broker.records import Queue, WorkerState
from sie_config.registry import lane_of
from sie_ingress.lanes import Lanes
from sie_ingress.notices import AGAIN_S, KNOWN, Notices
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC, Desk

LANE = lane_of(SPEC)
QUEUE = Queue(LANE, MODEL)


async def test_workers_are_told_once_a_second_of_a_model_that_none_has_loaded() -> None:
    broker, told, now = MemoryBroker(), list[Queue](), 0.0
    lanes = Lanes(broker, 5.0)
    notices = Notices(broker, lanes, clock=lambda: now)
    async with broker.on_wanted(LANE, told.append):
        for _ in range(3):
            notices.of(QUEUE)
        notices.of(QUEUE._replace(priority="bulk"))
        assert told == [QUEUE, QUEUE._replace(priority="bulk")]
        now = AGAIN_S
        notices.of(QUEUE)
        assert len(told) == 3
        state = WorkerState("w", LANE, "ready", clock.now(), models=(MODEL,))
        lanes.heard("w", msgspec.msgpack.encode(state))
        now = 2 * AGAIN_S
        notices.of(QUEUE)
        assert len(told) == 3
        lanes.heard("w", None)
        notices.of(QUEUE)
        assert len(told) == 4
        for number in range(KNOWN + 2):  # of whatever many queues
            notices.of(Queue(LANE, f"m{number}"))
        assert len(told) == 4 + KNOWN + 2


async def test_whatever_is_submitted_to_a_model_that_is_not_loaded_is_told(desk: Desk) -> None:
    told: list[Queue] = []
    async with desk.broker.on_wanted(LANE, told.append):
        assert (await desk.encode("cold")).status_code == 202
        await eventually(lambda: told == [QUEUE])
