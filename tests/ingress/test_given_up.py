"""A lane whose workers do not come: who waits is told why, who does not is queued, and what is queued is answered."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec
import pytest

from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import LaneStatus
from sie_broker.records import Lane
from sie_config.registry import lane_of
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC, Desk

LANE = lane_of(SPEC)
WHY = "No worker of default on cpu has started within 900 s; its Service last answered: HTTP 503."
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/me", "ce-type": "dev.sie.encode.v1", "ce-model": MODEL}


async def test_a_job_whose_worker_is_late_says_so_before_it_is_given_up(desk: Desk) -> None:
    status = LaneStatus(LANE, 1, 10.0, False, 1, 0, time.time(), missing_since=time.time() - 63)
    await desk.broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(status))
    await eventually(lambda: desk.lanes.statuses() != [])
    answer = await desk.encode("hello")
    look = await desk.client.get(answer.headers["location"])
    for each in (answer, look):
        assert (each.status_code, 29 <= int(each.headers["retry-after"]) <= 40) == (202, True)
        assert "its first worker should have been there 6" in each.json()["job"]["message"]


async def told(desk: Desk, failure: str = WHY) -> None:
    """The demand leader says that the lane has failed, or that it has not."""
    now = time.time()
    status = LaneStatus(LANE, 1, 10.0, False, 1, 0, now, missing_since=now - 900, failure=failure)
    await desk.broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(status))
    await eventually(lambda: (desk.lanes.given_up(LANE) is not None) == bool(failure))


async def queued(desk: Desk) -> int:
    """Works that wait."""
    return (await desk.broker.backlog()).get(LANE, 0)


def refused(answer: httpx.Response) -> bool:
    """Whether it is the typed error, with the reason and when to come again."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, answer.headers["x-sie-error-code"])
    return (error["code"], error["message"], answer.headers["retry-after"]) == ("PROVISIONING_FAILED", WHY, "120")


@pytest.mark.parametrize("headers", [{}, {"Prefer": "wait=30"}, {"Idempotency_Key": "k"}])
async def test_who_waits_is_refused_with_the_reason_and_not_queued(desk: Desk, headers: dict[str, str]) -> None:
    woken = list[Lane]()
    async with desk.broker.on_wake(woken.append):
        await told(desk)
        answer = await desk.encode("hello", **headers)
        assert refused(answer) and "job" not in answer.json()["error"]
        await eventually(lambda: woken == [LANE])
    assert await queued(desk) == 0


@pytest.mark.parametrize("prefer", ["wait=0", "respond-async"])
async def test_who_does_not_wait_is_queued_and_hears_at_the_job_why_it_is_not_answered(desk: Desk, prefer: str) -> None:
    await told(desk)
    answer = await desk.encode("hello", Prefer=prefer)
    assert answer.status_code == 202
    look = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=30"})
    assert refused(look) and look.json()["error"]["location"] == answer.headers["location"]
    async with desk.worker():
        look = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=30"})
    assert (look.status_code, look.json()["items"][0]["dense"]["values"][0]) == (200, 5)


async def test_who_is_held_when_the_workers_are_given_up_is_let_go_and_its_work_waits(desk: Desk) -> None:
    held = []
    for number in (1, 2):
        held.append(asyncio.create_task(desk.encode("hello", Prefer="wait=10", Idempotency_Key="k")))
        await eventually(lambda number=number: len(desk.readiness.held._wakers) == number)  # type: ignore[misc]
    await told(desk)
    for answer in await asyncio.gather(*held):
        assert refused(answer)
    assert refused(await desk.encode("hello", Idempotency_Key="k")), "a repeat is the same job, which still waits"
    async with desk.worker():
        again = await desk.encode("hello", Prefer="wait=10", Idempotency_Key="k")
    assert again.status_code == 200 and len(desk.computed) == 1


async def test_what_was_answered_before_is_answered_again(desk: Desk) -> None:
    async with desk.worker():
        before = await desk.encode("hello", Idempotency_Key="k")
    await told(desk)
    again = await desk.encode("hello", Idempotency_Key="k")
    assert (again.status_code, again.json()) == (200, before.json())


async def test_a_large_request_is_refused_as_a_whole(desk: Desk) -> None:
    await told(desk)
    assert refused(await desk.encode(*["a"] * 600))
    assert await queued(desk) == 0


@pytest.mark.parametrize("prefer", ["", "reply", "wait=20"])
async def test_an_event_is_queued_for_its_sender_would_lose_it(desk: Desk, prefer: str) -> None:
    await told(desk)
    answer = await desk.post("/v1/events", {"items": [{"text": "hello"}]}, **EVENT, Prefer=prefer)
    assert (answer.status_code, answer.content) == (202, b"")
    assert await queued(desk) == 1


async def test_published_and_official_clients_are_told_not_to_try_again(desk: Desk) -> None:
    await told(desk)
    published = await desk.encode("hello", X_SIE_SDK_Version="0.10.1")
    assert published.json()["error"]["code"] == "PROVISIONING_FAILED"
    official = await desk.post("/v1/embeddings", {"model": MODEL, "input": "hello"})
    assert (official.status_code, official.json()["error"]["code"]) == (503, "PROVISIONING_FAILED")
    assert official.headers["x-should-retry"] == "false" and WHY in official.json()["error"]["message"]
    assert await queued(desk) == 0


async def test_an_official_client_that_is_held_then_is_told_too(desk: Desk) -> None:
    held = asyncio.create_task(desk.post("/v1/embeddings", {"model": MODEL, "input": "hello"}))
    await eventually(lambda: len(desk.readiness.held._wakers) == 1)
    await told(desk)
    assert (await held).json()["error"]["code"] == "PROVISIONING_FAILED"


async def test_health_says_which_lane_has_failed_and_why_until_it_has_not(desk: Desk) -> None:
    await told(desk)
    health = (await desk.client.get("/health")).json()
    assert (health["status"], health["lanes"][0]["failure"]) == ("degraded", WHY)
    await told(desk, "")
    health = (await desk.client.get("/health")).json()
    assert (health["status"], health["lanes"][0]["failure"]) == ("healthy", "")
    assert (await desk.encode("hello")).status_code == 202
