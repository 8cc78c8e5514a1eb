"""The executor's queue: of what left it nothing is counted on, and of what is in it everything is computed soon."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence

import pytest

from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.row import Row
from sie_sdk.errors import DeadlineExceededError, InferenceError
from tests.bundle.test_executor import BROKEN, HEADS, Gated, busy, queued, rows, running, until_idle, vectors


async def test_of_a_caller_that_left_and_one_that_came_too_late_nothing_is_counted_on() -> None:
    model = Gated()
    async with running() as executor, asyncio.timeout(30):
        first = await busy(executor, model)
        leaver, stayer = await queued(executor, model, rows(1, 1), rows(2))
        late = asyncio.create_task(executor.forward(model, rows(3, 3, 3), HEADS, deadline=time.time() - 1))
        await asyncio.sleep(0)
        assert executor.waiting_tokens == 6
        leaver.cancel()
        model.gate.set()
        with pytest.raises(DeadlineExceededError):
            await late
        await asyncio.gather(first, stayer)
        await asyncio.to_thread(until_idle, executor, 1)
        assert (executor.waiting_tokens, executor.running, executor._in_passes) == (0, 0, 0)


async def test_what_a_batch_leaves_is_taken_at_once_by_another_stream() -> None:
    class Meeting(Gated):
        """Two passes wait for each other."""

        def __init__(self) -> None:
            super().__init__()
            self.both = threading.Barrier(2)
            self.gate.set()

        def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
            self.both.wait(10)
            return super().forward(rows, wanted)

    executor, model = Executor(max_batch_tokens=2, streams=2), Meeting()
    try:
        await asyncio.to_thread(until_idle, executor, 2)
        done = await executor.forward(model, rows(1, 2, 3, 4), HEADS)  # one request wakes one stream
    finally:
        await asyncio.to_thread(executor.close)
    assert vectors(done).ravel().tolist() == [1, 2, 3, 4]


async def test_nothing_more_is_computed_of_a_request_that_has_failed_before_its_caller_knows() -> None:
    model = Gated()
    model.gate.set()
    async with running(ceiling=1) as executor:
        failing = asyncio.create_task(executor.forward(model, rows(BROKEN, 1, 2), HEADS))
        await asyncio.sleep(0)
        until_idle(executor, 1)  # the event loop stands still, and delivers no answer
        with pytest.raises(InferenceError):
            await failing
        assert executor.waiting_tokens == 0
    assert model.batches == [[BROKEN]]


async def test_a_caller_that_leaves_as_its_answer_comes_takes_none_from_its_neighbours() -> None:
    model = Gated()
    async with running() as executor, asyncio.timeout(30):
        first = await busy(executor, model)
        leaver, neighbour = await queued(executor, model, rows(1), rows(2))
        model.gate.set()
        until_idle(executor, 1)  # both answers are on their way to the event loop, which stands still
        leaver.cancel()
        assert vectors(await neighbour).tolist() == [[2]]
        await asyncio.wait([first, leaver])
        assert leaver.cancelled()
    assert model.batches == [[0], [1, 2]]
