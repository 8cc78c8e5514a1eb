"""The tasks of a process: one that fails makes it leave and says why, one that is done or ended does not."""

from __future__ import annotations

import asyncio

import pytest

from sie_broker.duties import Duties


async def for_ever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    await asyncio.sleep(0)


async def failing() -> None:
    raise ValueError("this is why")


async def test_a_duty_that_fails_stops_its_process_which_says_why(caplog: pytest.LogCaptureFixture) -> None:
    duties = Duties(stop := asyncio.Event())
    duties.begin(for_ever())
    duties.begin(failing())
    async with asyncio.timeout(10):
        await stop.wait()
        await duties.end()
    with pytest.raises(ValueError, match="this is why"):
        duties.check()
    (told,) = caplog.records
    assert told.getMessage() == "a part of this process failed, and it leaves"
    assert told.exc_info is not None and isinstance(told.exc_info[1], ValueError)


async def test_only_the_first_failure_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def at_its_end() -> None:
        try:
            await for_ever()
        finally:
            raise KeyError

    duties = Duties(stop := asyncio.Event())
    duties.begin(at_its_end())
    duties.begin(failing())
    await stop.wait()
    await duties.end()
    with pytest.raises(ValueError, match="this is why"):
        duties.check()
    assert len(caplog.records) == 1


async def test_a_duty_that_is_done_and_one_that_is_ended_are_no_failures() -> None:
    duties = Duties(stop := asyncio.Event())
    duties.begin(at_once())
    duties.begin(for_ever())
    for _ in range(3):
        await asyncio.sleep(0)
    await duties.end()
    duties.check()
    assert not stop.is_set()
