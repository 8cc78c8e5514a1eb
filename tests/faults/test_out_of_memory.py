"""A device that runs out of memory: batches are split until they fit, and only a single row too many is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from sie_bundle.engine.cost import Fit
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.row import Row, row
from sie_sdk.errors import OutOfMemoryError


class Cramped:
    """A row's vector is its first token. No forward of more than ``most`` rows fits."""

    def __init__(self, most: int, error: Exception) -> None:
        self.most = most
        self.error = error
        self.fit = Fit()
        self.batches: list[int] = []

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        self.batches.append(len(rows))
        if len(rows) > self.most:
            raise self.error
        vectors = np.array([[int(row.ids[0])] for row in rows], dtype=np.float32)
        return {"dense": vectors[list(wanted["dense"])]}


# Whatever compiled code of torch's fails with comes out of it as a RuntimeError.
COMPILED = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB."""
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("can't allocate memory"),
    RuntimeError(COMPILED),
]


def rows(*tokens: int) -> list[Row]:
    return [row([token]) for token in tokens]


@asynccontextmanager
async def running(**settings: Any) -> Any:
    executor = Executor(**settings)
    try:
        yield executor
    finally:
        await asyncio.to_thread(executor.close)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("most", [1, 3, 7])
async def test_everything_is_answered_in_batches_that_fit(most: int, error: Exception) -> None:
    model = Cramped(most, error)
    asked = [list(range(start, start + 1 + start % 5)) for start in range(60)]
    async with running() as executor:
        done = await asyncio.gather(*(executor.forward(model, rows(*some), ["dense"]) for some in asked))
    for some, each in zip(asked, done, strict=True):
        assert each.outputs["dense"].ravel().tolist() == some


async def test_a_request_that_alone_is_too_much_is_split_and_put_together() -> None:
    model = Cramped(3, MemoryError())
    async with running() as executor:
        done = await executor.forward(model, rows(*range(10)), ["dense"])
    assert done.outputs["dense"].ravel().tolist() == list(range(10))
    assert max(size for size in model.batches if size <= 3) > 1, "no smaller than needed"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_single_row_that_does_not_fit_is_refused_with_a_typed_error(error: Exception) -> None:
    async with running() as executor:
        with pytest.raises(OutOfMemoryError) as caught:
            await executor.forward(Cramped(0, error), rows(1, 2, 3), ["dense"])
        fine = await executor.forward(Cramped(1, error), rows(4), ["dense"])
    assert caught.value.status == 503 and caught.value.retry_after == 5.0
    assert fine.outputs["dense"].ravel().tolist() == [4]


@pytest.mark.parametrize(
    ("cached", "idle", "batches"),
    [(2, 0, [3, 3]), (1, 1, [3, 3, 3]), (0, 2, [3, 3, 3, 3]), (1, 0, [3, 3, 1, 2])],
    ids=["what is unused is enough", "and one idle model", "two idle models", "both are not, and it is split"],
)
async def test_what_is_unused_goes_before_what_is_idle_and_both_before_a_batch_is_split(
    cached: int, idle: int, batches: list[int]
) -> None:
    model, tried = Cramped(1, MemoryError()), list[str]()

    def free() -> None:
        tried.append("free")
        model.most += cached

    def relieve() -> bool:
        tried.append("relieve")
        model.most += tried.count("relieve") <= idle
        return tried.count("relieve") <= idle

    async with running(free=free, relieve=relieve) as executor:
        done = await executor.forward(model, rows(1, 2, 3), ["dense"])
    assert done.outputs["dense"].ravel().tolist() == [1, 2, 3]
    assert model.batches == batches
    assert tried[0] == "free" and tried.count("free") == 1
