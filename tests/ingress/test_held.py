"""A held request ends with its answer, its time, or the ingress; and what it waited for stays usable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sie_broker import jobs
from sie_config.registry import lane_of
from sie_ingress.held import Held
from tests.conftest import eventually
from tests.ingress.conftest import SPEC, Desk

LANE = lane_of(SPEC)
OTHER = msgspec.structs.replace(LANE, pool="other")


async def test_the_answer_ends_the_hold() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(Held().within(60, answer, LANE))
    await asyncio.sleep(0)
    answer.set_result("here")
    assert await waiting == "here"


async def test_an_answer_that_is_there_already_needs_no_time() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answer.set_result("here")
    assert await Held().within(0, answer, LANE) == "here"


async def test_a_future_that_did_not_come_in_time_is_still_usable_and_a_coroutine_is_cancelled() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    assert await Held().within(0.001, answer, LANE) is None
    answer.set_result("later")
    cancelled = asyncio.Event()

    async def never() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    assert await Held().within(0.001, never(), LANE) is None
    await eventually(cancelled.is_set)


async def test_of_a_hold_that_has_ended_nothing_is_kept() -> None:
    held, answer = Held(), asyncio.get_running_loop().create_future()
    assert await held.within(0, answer, LANE) is None
    assert not held._wakers


async def test_what_the_answer_raises_is_raised() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Held().within(1, fails(), LANE)


async def test_leaving_lets_everybody_go_now_and_later() -> None:
    held = Held()
    answers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    waiting = [asyncio.create_task(held.within(60, answer, LANE)) for answer in answers]
    await asyncio.sleep(0)
    held.leave()
    assert await asyncio.gather(*waiting) == [None, None, None]
    assert await held.within(60, asyncio.get_running_loop().create_future(), LANE) is None


async def test_a_lane_whose_workers_are_given_up_lets_go_of_its_own() -> None:
    held, answers = Held(), [asyncio.get_running_loop().create_future() for _ in range(3)]
    waiting = [
        asyncio.create_task(held.within(60, answer, lane))
        for answer, lane in zip(answers, [LANE, OTHER, LANE], strict=True)
    ]
    await asyncio.sleep(0)
    held.let_go(LANE)
    assert await waiting[0] is await waiting[2] is None
    answers[1].set_result("here")
    assert await waiting[1] == "here"


async def test_an_ingress_that_leaves_gives_whom_it_holds_a_job_that_is_computed_once(desk: Desk) -> None:
    desk.hold.clear()
    async with desk.worker():
        warm = asyncio.create_task(desk.encode("hello"))
        await eventually(lambda: len(desk.computed) == 1)
        desk.readiness.leave()
        answer = await warm
        assert answer.status_code == 202
        desk.hold.set()
        location = answer.headers["location"]
        done = asyncio.create_task(desk.client.get(location))
        while (await done).status_code == 202:
            done = asyncio.create_task(desk.client.get(location))
    assert done.result().json()["items"][0]["dense"]["values"][0] == 5
    assert len(desk.computed) == 1


async def test_a_result_that_nobody_told_of_is_found_at_the_end_of_the_hold(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the request itself, and by who looks at a job."""

    @asynccontextmanager
    async def deaf(changed: object, key: str = ">") -> AsyncIterator[None]:
        watching.append(key)
        yield

    watching: list[str] = []
    job = (await desk.encode("other", prefer="respond-async")).headers["location"]
    monkeypatch.setattr(desk.broker.jobs, "watch", deaf)
    monkeypatch.setattr(jobs, "SOON_S", 60)
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 60)
    held = [
        asyncio.create_task(desk.encode("four", prefer="wait=3")),
        asyncio.create_task(desk.client.get(job, headers={"prefer": "wait=3"})),
    ]
    await eventually(lambda: len(watching) == 2)
    async with desk.worker():
        answers = await asyncio.gather(*held)
    assert [answer.json()["items"][0]["dense"]["values"][0] for answer in answers] == [4, 5]
