"""A second pass beside an event loop that takes a core: for a whole batch, and not for a few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sie_bundle.engine.executor import Executor
from tests.bundle.test_executor import HEADS, Gated, busy, queued, rows


@asynccontextmanager
async def crowded(monkeypatch: pytest.MonkeyPatch, ceiling: int) -> AsyncIterator[Executor]:
    """Two streams on two cores, one of which the event loop takes."""
    executor = Executor(max_batch_tokens=ceiling, streams=2, threads=1, count=2)
    monkeypatch.setattr(executor._cores, "attended", lambda taken_s, now: None)
    executor._cores._loop = 0.9
    try:
        yield executor
    finally:
        await asyncio.to_thread(executor.close)


async def test_beside_a_busy_event_loop_a_few_wait_for_the_pass_that_runs_and_go_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Gated()
    async with crowded(monkeypatch, ceiling=10) as executor:
        first = await busy(executor, model)
        few = await queued(executor, model, rows(1), rows(2), rows(3))
        assert executor.running == 1 and executor.waiting_tokens == 3
        model.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, *few)
    assert model.batches == [[0], [1, 2, 3]]


async def test_beside_a_busy_event_loop_a_full_batch_is_taken_by_the_next_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, model = Gated(), Gated()
    async with crowded(monkeypatch, ceiling=3) as executor:
        first = await busy(executor, held)
        few = await queued(executor, model, rows(1), rows(2))
        assert not model.entered.is_set()
        full = await queued(executor, model, rows(3))
        model.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(*few, *full)
        held.gate.set()
        await first
    assert model.batches == [[1, 2, 3]]


async def test_beside_an_event_loop_at_rest_whoever_comes_starts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held, model = Gated(), Gated()
    model.gate.set()
    async with crowded(monkeypatch, ceiling=10) as executor:
        executor._cores._loop = 0.1
        first = await busy(executor, held)
        async with asyncio.timeout(10):
            await executor.forward(model, rows(1), HEADS)
        held.gate.set()
        await first


async def test_an_event_loop_that_computes_is_seen_to_take_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", time.monotonic)  # its thread has a core, whoever else wants one here
    model = Gated()
    model.gate.set()
    executor = Executor(streams=2, threads=1, count=2)
    try:
        async with asyncio.timeout(30):
            while executor._cores.left(1):
                await executor.forward(model, rows(1), HEADS)
    finally:
        await asyncio.to_thread(executor.close)
