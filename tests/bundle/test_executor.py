"""The executor on small models whose forwards the test can hold: order, isolation, cancellation, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

import numpy as np
import pytest
import torch

from sie_bundle.engine import batch
from sie_bundle.engine.cores import TRIAL
from sie_bundle.engine.cost import Fit, Reading
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Floats, Outputs
from sie_bundle.engine.request import Forwarded
from sie_bundle.engine.row import Row, row
from sie_bundle.models.model import EncoderModel
from sie_sdk.errors import DeadlineExceededError, InferenceError, UnavailableError
from tests.platform import wait_until

BROKEN, EXPLOSIVE = 13, 99
HEADS = ("dense",)


class Gated:
    """A row's vector is its first token. The device waits in each forward until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.fit = Fit()

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        self.entered.set()
        assert self.gate.wait(10)
        firsts = [int(row.ids[0]) for row in rows]
        self.batches.append(firsts)
        if EXPLOSIVE in firsts:
            raise ZeroDivisionError("boom")
        vectors = np.array(firsts, dtype=np.float32)[:, None]
        return {"dense": np.where(vectors == BROKEN, np.float32("nan"), vectors)[list(wanted["dense"])]}


def rows(*tokens: int, length: int = 1) -> list[Row]:
    return [row(np.full(length, token)) for token in tokens]


def vectors(done: Forwarded) -> Floats:
    dense = done.outputs["dense"]
    assert isinstance(dense, np.ndarray)
    return dense


@asynccontextmanager
async def running(ceiling: int = 100, seconds: float = float("inf")) -> AsyncIterator[Executor]:
    executor = Executor(max_batch_tokens=ceiling, max_batch_s=seconds)
    try:
        yield executor
    finally:
        await asyncio.to_thread(executor.close)


async def busy(executor: Executor, model: Gated, *tokens: int) -> asyncio.Task[Forwarded]:
    """Put a first request on the device, so that those that follow wait in the queue."""
    first = asyncio.create_task(executor.forward(model, rows(*tokens or (0,)), HEADS))
    await asyncio.to_thread(model.entered.wait, 10)
    return first


async def queued(
    executor: Executor, model: Gated, *requests: list[Row], bulk: bool = False
) -> list[asyncio.Task[Forwarded]]:
    tasks = [asyncio.create_task(executor.forward(model, request, HEADS, bulk=bulk)) for request in requests]
    await asyncio.sleep(0)  # each task runs up to its wait
    return tasks


async def test_what_waits_while_the_device_is_busy_goes_together() -> None:
    model = Gated()
    async with running() as executor:
        first = await busy(executor, model)
        others = await queued(executor, model, rows(1, 2), rows(3))
        assert (executor.running, executor.waiting_tokens) == (1, 3)
        model.gate.set()
        await asyncio.gather(first, *others)
    assert model.batches == [[0], [1, 2, 3]]
    assert executor.batches == 2 and executor.texts_computed == 4
    assert (executor.running, executor.waiting_tokens) == (0, 0)


async def test_each_request_gets_its_own_vectors_and_readings_in_order() -> None:
    model = Gated()
    model.gate.set()
    async with running() as executor:
        before = time.monotonic()
        done = await executor.forward(model, rows(5, 6), HEADS)
    assert vectors(done).tolist() == [[5], [6]]
    assert before <= done.queued <= done.started <= done.ended <= time.monotonic()


async def test_a_request_over_the_ceiling_is_computed_in_slices_and_put_together() -> None:
    model = Gated()
    model.gate.set()
    async with running(ceiling=20) as executor:
        done = await executor.forward(model, rows(*range(1, 6), length=10), HEADS)
    assert model.batches == [[1, 2], [3, 4], [5]]
    assert vectors(done).ravel().tolist() == [1, 2, 3, 4, 5]


async def test_two_models_never_share_a_batch() -> None:
    model, other = Gated(), Gated()
    other.gate.set()
    async with running() as executor:
        first = await busy(executor, model)
        tasks = [*await queued(executor, model, rows(1)), *await queued(executor, other, rows(2))]
        model.gate.set()
        await asyncio.gather(first, *tasks)
    assert model.batches == [[0], [1]] and other.batches == [[2]]


async def test_bulk_requests_stand_back_for_interactive_ones_that_came_later() -> None:
    model = Gated()
    async with running(ceiling=2) as executor:
        first = await busy(executor, model)
        load = await queued(executor, model, rows(1, 2), rows(3), rows(4), bulk=True)
        later = await queued(executor, model, rows(5))
        model.gate.set()
        await asyncio.gather(first, *load, *later)
    assert model.batches == [[0], [5], [1, 2], [3, 4]]


async def test_bulk_leads_one_batch_in_its_turn_and_then_lets_interactive_requests_go_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "BULK_WAIT_S", 0.0)
    model = Gated()
    async with running(ceiling=1) as executor:
        first = await busy(executor, model)
        load = await queued(executor, model, rows(1), rows(2), bulk=True)
        others = await queued(executor, model, rows(3), rows(4))
        model.gate.set()
        await asyncio.gather(first, *load, *others)
    assert model.batches == [[0], [1], [3], [4], [2]]


async def test_a_batch_keeps_the_ceiling_of_the_model_that_leads_it() -> None:
    model, slow = Gated(), Gated()
    slow.gate.set()
    slow.fit.observe(Reading(tokens=1, squares=1, seconds=0.6))
    async with running(ceiling=100, seconds=1.0) as executor:
        first = await busy(executor, model)
        load = await queued(executor, model, rows(1), bulk=True)
        later = await queued(executor, slow, rows(2), rows(3))
        model.gate.set()
        await asyncio.gather(first, *load, *later)
    assert slow.batches == [[2], [3]] and model.batches == [[0], [1]]


async def test_an_output_that_is_not_finite_fails_alone_and_names_its_item() -> None:
    model = Gated()
    async with running() as executor:
        first = await busy(executor, model)
        good, bad = await queued(executor, model, rows(1), rows(2, BROKEN))
        model.gate.set()
        await asyncio.gather(first, good)
        with pytest.raises(InferenceError) as caught:
            await bad
    assert caught.value.field == "items[1]"
    assert model.batches == [[0], [1, 2, BROKEN]]


async def test_the_item_is_named_by_its_place_in_the_request_even_in_a_later_slice() -> None:
    model = Gated()
    model.gate.set()
    async with running(ceiling=2) as executor:
        with pytest.raises(InferenceError) as caught:
            await executor.forward(model, rows(1, 2, 3, BROKEN, 5, 6), HEADS)
    assert (caught.value.field, caught.value.details["row"]) == ("items[3]", 3)
    assert model.batches == [[1, 2], [3, BROKEN]], "the rest of a failed request is not computed"


async def test_a_batch_that_fails_is_tried_again_request_by_request() -> None:
    model = Gated()
    async with running() as executor:
        first = await busy(executor, model)
        good, bad, fine = await queued(executor, model, rows(1), rows(EXPLOSIVE), rows(2))
        model.gate.set()
        await asyncio.gather(first, good, fine)
        with pytest.raises(ZeroDivisionError):
            await bad
        await executor.forward(model, rows(3), HEADS)
    assert model.batches == [[0], [1, EXPLOSIVE, 2], [1], [EXPLOSIVE], [2], [3]]


async def test_a_model_that_gives_too_few_vectors_is_an_error_and_not_a_wrong_answer() -> None:
    class Short(Gated):
        def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
            return {"dense": np.zeros((len(rows) - 1, 1), dtype=np.float32)}

    async with running() as executor:
        with pytest.raises(RuntimeError, match="1 dense outputs for 2 rows"):
            await executor.forward(Short(), rows(1, 2), HEADS)


async def test_a_caller_that_leaves_while_queued_is_not_computed() -> None:
    model = Gated()
    async with running() as executor:
        first = await busy(executor, model)
        leaver, stayer = await queued(executor, model, rows(1), rows(2))
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        model.gate.set()
        await asyncio.gather(first, stayer)
    assert model.batches == [[0], [2]]


async def test_a_caller_that_leaves_during_its_forward_harms_nobody() -> None:
    model = Gated()
    async with running() as executor:
        first = await busy(executor, model)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        model.gate.set()
        assert vectors(await executor.forward(model, rows(1), HEADS)).tolist() == [[1]]


async def test_a_caller_whose_event_loop_has_closed_harms_nobody() -> None:
    model = Gated()

    async def leave() -> None:
        await busy(executor, model)

    async with running() as executor:
        await asyncio.to_thread(asyncio.run, leave())
        model.gate.set()
        assert vectors(await executor.forward(model, rows(1), HEADS)).tolist() == [[1]]
    assert model.batches == [[0], [1]]


async def test_a_batch_wakes_the_event_loop_once_for_all_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loop, wakes = Gated(), asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object, context: Context | None = None) -> asyncio.Handle:
        if threading.current_thread().name.startswith("device"):
            wakes.append(callback)
        return wake(callback, *args, context=context)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    async with running() as executor:
        first = await busy(executor, model)
        others = await queued(executor, model, rows(1), rows(BROKEN), rows(2, 3))
        model.gate.set()
        await asyncio.gather(first, *others, return_exceptions=True)
    assert model.batches == [[0], [1, BROKEN, 2, 3]] and len(wakes) == 2


async def test_a_deadline_that_has_passed_is_told_and_not_computed() -> None:
    model = Gated()
    model.gate.set()
    async with running() as executor:
        with pytest.raises(DeadlineExceededError):
            await executor.forward(model, rows(1), HEADS, deadline=time.time() - 1)
    assert model.batches == []


async def test_closing_finishes_what_is_queued_and_refuses_what_comes_after() -> None:
    model = Gated()
    executor = Executor()
    first = await busy(executor, model)
    (second,) = await queued(executor, model, rows(1))
    closing = asyncio.create_task(asyncio.to_thread(executor.close))
    model.gate.set()
    await asyncio.gather(first, second, closing)
    with pytest.raises(UnavailableError):
        await executor.forward(model, rows(2), HEADS)
    assert model.batches == [[0], [1]]


class Named(Gated):
    """Notes which thread computes, and on how many of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.fit.observe(Reading(1, 1, 60.0))  # as long as nobody waits, so that nothing is slower
        self.seen: list[tuple[str, int]] = []

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        self.seen.append((threading.current_thread().name, torch.get_num_threads()))
        return super().forward(rows, wanted)


@pytest.mark.parametrize(
    ("alone", "loading", "expected"), [(None, False, 1), (2, False, 2), (2, True, 1)], ids=["usual", "alone", "loading"]
)
async def test_forwards_run_with_the_threads_the_executor_was_given(
    alone: int | None, loading: bool, expected: int
) -> None:
    before, model = torch.get_num_threads(), Named()
    model.gate.set()
    executor = Executor(threads=1, alone=alone, loading=lambda: loading)
    try:
        for _ in range(TRIAL + 1):
            await executor.forward(model, rows(0), HEADS)
    finally:
        await asyncio.to_thread(executor.close)
        torch.set_num_threads(before)
    assert model.seen == [("device-0", 1)] * TRIAL + [("device-0", expected)]


async def test_a_lone_request_is_computed_by_the_first_stream_on_all_cores_and_another_beside_it_on_one() -> None:
    before, executor = torch.get_num_threads(), Executor(threads=1, alone=2, streams=3)
    try:
        quick, slow = Named(), Named()
        quick.gate.set()
        for _ in range(TRIAL):
            await executor.forward(quick, rows(0), HEADS)
            await asyncio.to_thread(until_idle, executor, 3)
        first = await busy(executor, slow)
        await executor.forward(quick, rows(0), HEADS)
        slow.gate.set()
        await first
    finally:
        await asyncio.to_thread(executor.close)
        torch.set_num_threads(before)
    assert slow.seen == [("device-0", 2)]
    assert quick.seen[:TRIAL] == [("device-0", 1)] * TRIAL
    assert quick.seen[TRIAL][0] != "device-0" and quick.seen[TRIAL][1] == 1


def until_idle(executor: Executor, streams: int) -> None:
    """Return when as many streams as that wait for work."""
    wait_until(lambda: len(executor._idle) == streams)


async def test_a_real_models_broken_text_fails_alone(tiny: EncoderModel) -> None:
    tokens = tiny.tokenizer.rows(["hello", "poison", "world"], 32)
    async with running() as executor:
        results = await asyncio.gather(
            *(executor.forward(tiny, [each], HEADS) for each in tokens), return_exceptions=True
        )
    assert [isinstance(result, InferenceError) for result in results] == [False, True, False]


class Odd(Gated):
    def __init__(self, gives: Callable[[int], object]) -> None:
        super().__init__()
        self.gives = gives

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        super().forward(rows, wanted)
        return {"dense": self.gives(len(rows))}


def raises(error: type[BaseException]) -> Callable[[int], object]:
    def give(_: int) -> object:
        raise error

    return give


@pytest.mark.parametrize(
    "gives",
    [
        *map(raises, (SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, GeneratorExit)),
        lambda count: torch.ones(count, 2, dtype=torch.bfloat16),
        lambda count: [None] * count,
        lambda count: np.ones((count, count), np.float32),
    ],
)
async def test_a_model_that_keeps_to_no_contract_fails_alone_and_stops_no_stream(
    gives: Callable[[int], object],
) -> None:
    odd, model = Odd(gives), Gated()
    odd.gate.set()
    model.gate.set()
    async with running(ceiling=2) as executor, asyncio.timeout(10):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            await executor.forward(odd, rows(1, 2, 3), HEADS)
        assert vectors(await executor.forward(model, rows(4), HEADS)).tolist() == [[4]]


async def test_what_ran_out_of_memory_is_not_halved_for_a_caller_that_has_left() -> None:
    model = Odd(raises(MemoryError))
    async with running() as executor:
        leaver = await busy(executor, model, 1, 2, 3, 4)
        leaver.cancel()
        await asyncio.wait([leaver])
        model.gate.set()
    assert model.batches == [[1, 2, 3, 4]]
