"""What a backlog tells callers: Retry-After of 202, 429 and 503, and the lanes of ``GET /health``."""

from __future__ import annotations

import time

import msgspec
import pytest

from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import LaneStatus
from sie_broker.records import Submission, Work
from sie_config.registry import lane_of
from sie_sdk.errors import QueueFullError
from tests.conftest import eventually
from tests.ingress.conftest import SPEC, Desk

LANE = lane_of(SPEC)


async def told(desk: Desk, waiting: int) -> None:
    """The leader says that so much waits; a pod does ten a second."""
    status = LaneStatus(LANE, waiting, rate=10.0, measured=True, wanted=1, live=1, at=time.time())
    await desk.broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(status))
    await eventually(lambda: [known.waiting for known in desk.lanes.statuses()] == [waiting])


async def test_a_202_of_a_busy_lane_says_when_its_backlog_will_be_done(desk: Desk) -> None:
    async with desk.worker():
        await told(desk, 423)
        desk.hold.clear()
        answer = await desk.encode("one", Prefer="wait=0")
        assert (answer.status_code, answer.headers["retry-after"]) == (202, "43")
        assert answer.json()["job"]["retry_after_s"] == 42.3
        again = await desk.client.get(answer.headers["location"])
        assert (again.status_code, again.headers["retry-after"]) == (202, "43")


async def test_a_full_queue_says_when_its_backlog_will_be_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(work: Work, after: int = 0) -> Submission:
        raise QueueFullError("The queue is full.", retry_after=1.0)

    async with desk.worker():
        await told(desk, 423)
        monkeypatch.setattr(desk.broker, "submit", full)
        answer = await desk.encode("one")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "43")
        assert answer.json()["error"]["code"] == "QUEUE_FULL"


async def test_a_cold_lane_adds_its_start(desk: Desk) -> None:
    await told(desk, 423)
    answer = await desk.encode("one")
    assert (answer.status_code, answer.headers["retry-after"]) == (202, "46")


async def test_health_shows_how_each_lane_stands(desk: Desk) -> None:
    assert (await desk.client.get("/health")).json()["lanes"] == []
    async with desk.worker():
        await told(desk, 7)
        (lane,) = (await desk.client.get("/health")).json()["lanes"]
        assert lane == {
            "pool": LANE.pool,
            "bundle": LANE.bundle,
            "gpu": LANE.profile,
            "waiting": 7,
            "rate": 10.0,
            "measured": True,
            "wanted": 1,
            "live": 1,
            "bundle_config_hash": desk.registry.hash_of(LANE),
            "failure": "",
        }
