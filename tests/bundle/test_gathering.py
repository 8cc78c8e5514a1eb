"""Waiting a moment for callers who come back: for how many, and when not."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.engine import executor as executor_module
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.gathering import CROWD, LONGEST_S, Gathering, awaited, patience_s
from tests.bundle.test_executor import HEADS, Gated, busy, queued, rows, running
from tests.conftest import eventually

counts = st.integers(0, 100)


@given(answered=counts, running=counts, queued=counts, streams=st.integers(1, 8))
def test_a_stream_waits_for_its_share_of_those_who_may_ask(
    answered: int, running: int, queued: int, streams: int
) -> None:
    expected = awaited(answered, running, queued, streams)
    if expected:
        everybody = answered + running + queued
        assert expected * streams >= everybody > (expected - 1) * streams
        assert queued < expected <= everybody
        assert CROWD * queued < answered, "those who wait are not made to wait for as few others"


def test_one_caller_for_each_stream_is_not_waited_for() -> None:
    assert awaited(answered=1, running=0, queued=0, streams=1) == 0
    assert awaited(answered=1, running=1, queued=0, streams=2) == 0
    assert awaited(answered=1, running=3, queued=0, streams=4) == 0


def test_of_two_streams_neither_takes_all() -> None:
    assert awaited(answered=28, running=4, queued=0, streams=2) == 16
    assert awaited(answered=28, running=3, queued=1, streams=2) == 16
    assert awaited(answered=16, running=12, queued=4, streams=2) == 0, "four wait already"


def test_a_wait_is_a_part_of_the_pass_before_and_short() -> None:
    assert patience_s(0.01) == pytest.approx(0.003)
    assert patience_s(60.0) == LONGEST_S


def test_a_wait_that_has_ended_takes_no_stream_any_more() -> None:
    lock = threading.RLock()
    gathering = Gathering(lock)
    with lock:
        gathering.wait(2, 0.0)
    assert gathering.streams == 0


async def test_callers_who_come_back_one_after_the_other_share_the_next_pass(patient: None) -> None:
    model = Gated()
    async with running() as executor:

        async def caller(number: int) -> None:
            await executor.forward(model, rows(number), HEADS)
            await eventually(lambda: executor._gathering.streams > 0)  # else a slow thread finds all of them there
            await asyncio.sleep(0.002 * number)  # the pace of callers, not a wait of the test's
            await executor.forward(model, rows(number), HEADS)

        first = await busy(executor, model)
        callers = asyncio.gather(*(caller(number) for number in range(1, 5)))
        await asyncio.sleep(0)  # each runs up to its wait
        model.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, callers)
    assert [sorted(each) for each in model.batches] == [[0], [1, 2, 3, 4], [1, 2, 3, 4]]


async def test_whoever_fills_a_batch_waits_for_nobody(patient: None) -> None:
    model = Gated()
    async with running(ceiling=5) as executor:
        first = await busy(executor, model)
        five = await queued(executor, model, *(rows(number) for number in range(1, 6)))
        large = await queued(executor, model, rows(6, length=5))
        model.gate.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, *five, *large)
    assert model.batches == [[0], [1, 2, 3, 4, 5], [6]]


async def test_a_stream_that_waits_for_callers_closes_at_once(patient: None) -> None:
    model = Gated()
    executor = Executor()
    first = await busy(executor, model)
    two = await queued(executor, model, rows(1), rows(2))
    model.gate.set()
    await asyncio.gather(first, *two)
    async with asyncio.timeout(10):
        await asyncio.to_thread(executor.close)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits, waits for good."""
    monkeypatch.setattr(executor_module, "patience_s", lambda took_s: 1e6)
