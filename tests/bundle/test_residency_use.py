"""Residency: how long a model counts as in use, and what goes once it does not; what is told of one that never fits."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from sie_bundle.engine.cost import Fit
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.row import Row
from sie_bundle.models.model import Model
from sie_bundle.residency import residency as residency_module
from tests import tiny_model
from tests.bundle.residencies import Clock, Loads, residency, specs
from tests.conftest import eventually


class Busy:
    """A model whose pass takes until it is told."""

    def __init__(self) -> None:
        self.fit, self.done = Fit(), threading.Event()

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        assert self.done.wait(10)
        return {"dense": np.zeros((len(rows), 1), np.float32)}


def throw(error: BaseException, cause: BaseException | None = None) -> object:
    raise error from cause


WRONG: dict[str, Callable[[int], object] | None] = {
    "not finite": None,
    "error": lambda _: throw(ZeroDivisionError()),
    "error because of another": lambda _: throw(ValueError(), KeyError()),
    "memory": lambda _: throw(MemoryError()),
    "memory for all, another error for each": lambda tried: throw(MemoryError() if tried < 2 else KeyError()),
    "an adapter that leaves": lambda _: throw(SystemExit()),
    "outputs that are none": lambda _: {"dense": [None] * 3},
}
"""What a model does, by how often it was called before."""


@pytest.mark.parametrize("requests", [1, 2], ids=["alone", "in one pass with another"])
@pytest.mark.parametrize("gives", WRONG.values(), ids=WRONG)
async def test_a_model_is_in_use_no_longer_than_its_last_request_even_if_that_fails(
    tiny_folder: Path, gives: Callable[[int], object] | None, requests: int
) -> None:
    models, executor, busy = residency(tiny_folder, Loads(), Clock()), Executor(), Busy()
    model = await models.model(tiny_model.spec(tiny_folder))
    calls = count()
    if gives is not None:
        model.forward = lambda rows, wanted: gives(next(calls))  # type: ignore[method-assign, assignment, return-value]
    rows = model.tokenizer.rows(["poison"] * 3, 32)
    gc.disable()
    try:
        first = asyncio.create_task(executor.forward(busy, rows, ["dense"]))
        await eventually(lambda: executor.running == 1)
        asked = [asyncio.create_task(executor.forward(model, rows, ["dense"])) for _ in range(requests)]
        await eventually(lambda: executor.waiting_tokens == requests * sum(map(len, rows)))
        busy.done.set()
        await asyncio.wait([first, *asked])
        assert all(each.exception() is not None for each in asked)
        del asked, model
        await eventually(models.relieve)
    finally:
        gc.enable()
        await asyncio.to_thread(executor.close)
    assert models.bytes == 0


async def test_what_was_taken_back_goes_once_nobody_uses_it_and_more_is_held_than_the_limit(
    tiny_folder: Path, tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency_module, "RELEASE_S", 0.05)
    clock, size = Clock(), tiny.bytes
    models = residency(tiny_folder, Loads(), clock, max_bytes=size)
    a, b = specs(tiny_folder, 2)
    in_use = await models.model(a)
    clock.now += 10
    await models.model(b)  # beside it, over the limit
    assert await models.model(a) is in_use
    await eventually(lambda: models.ease() or models.bytes == size)  # once this task has let go of what it was given
    assert models.resident() == (a.id,)
    del in_use
    models.ease()
    assert models.bytes == size and models.resident() == (a.id,), "within the limit nobody goes"


async def test_a_pinned_model_that_is_too_large_is_not_told_of_every_second(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise asyncio.CancelledError

    (large,) = specs(tiny_folder, 1)
    models = residency(tiny_folder, Loads(), Clock(), max_bytes=1000)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await models.hold(large)
    assert slept == [60, 60] and "more than SIE_MODEL_BYTES allows" in caplog.text
