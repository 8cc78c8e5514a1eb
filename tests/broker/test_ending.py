"""Tasks are ended for good: told again when they did not hear, given the time that their end takes, and waited for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sie_broker.ending import end

SOON_S = 0.01


async def deaf(times: int) -> None:
    """Loses so many cancellations."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def begun(*tasks: asyncio.Task[None]) -> None:
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_task_that_did_not_hear_is_told_again(times: int) -> None:
    task = asyncio.create_task(deaf(times))
    await begun(task)
    async with asyncio.timeout(10):
        await end(task, again_s=SOON_S)
    assert task.cancelled()


async def test_a_task_has_time_for_its_end() -> None:
    done = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(SOON_S)
            done.set()

    task = asyncio.create_task(tidy())
    await begun(task)
    await end(task)
    assert done.is_set()


async def test_who_ends_others_and_is_ended_itself_tells_them_once_more_and_waits_for_them() -> None:
    inner = asyncio.create_task(deaf(1))
    outer = asyncio.create_task(end(inner))
    await begun(inner, outer)
    await begun(inner, outer)  # by now it has been told once, and did not hear
    async with asyncio.timeout(4):  # before it is told again for the time
        await end(outer)
    assert inner.cancelled() and outer.cancelled()


async def test_how_the_tasks_ended_is_not_raised_and_not_reported() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    async def failed() -> None:
        raise ValueError

    late, early = asyncio.create_task(failing()), asyncio.create_task(failed())
    await asyncio.sleep(0)
    await end(late, early)
    assert late.done() and early.done()
    del late, early
    assert reported == []


async def test_nothing_is_ended_at_once() -> None:
    async with asyncio.timeout(1):
        await end()
