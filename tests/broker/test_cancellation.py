"""A cancellation that comes together with an answer of the broker is not lost, whatever Python this is."""

from __future__ import annotations

import asyncio
import importlib

import pytest

CLIENT = importlib.import_module("sie_broker.jetstream.client")
wait_for = vars(asyncio)["wait_for"]
"""With which nats-py waits for every answer."""


async def test_who_is_cancelled_in_the_moment_of_the_answer_is_cancelled() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(wait_for(answer, 30))
    await asyncio.sleep(0)
    answer.set_result("it")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_answer_in_time_is_given_and_a_late_one_is_a_timeout() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(answer.set_result, "it")
    assert await wait_for(answer, 30) == "it"
    with pytest.raises(TimeoutError):
        await wait_for(asyncio.get_running_loop().create_future(), 0.01)


async def test_what_is_there_already_is_given_without_any_time_to_wait() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    answer.set_result("it")
    assert await wait_for(answer, 0) == "it"
