"""Requests of one model share a pass, whatever they want of it; what fails it, whatever that is, fails them alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest

from sie_bundle.engine.outputs import Outputs, SparseRow
from sie_bundle.engine.row import Row
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import encode, score
from sie_bundle.operations.operation import Plan
from sie_config.model.tasks import Score
from sie_sdk.types import EncodeParams, EncodeRequest, Item, ScoreRequest
from tests.bundle.test_executor import Gated, busy, queued, rows, running
from tests.bundle.test_families import load


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> EncoderModel:
    """Dense, sparse and multivector."""
    model = load("bge-m3", tmp_path_factory.mktemp("bge"))
    tasks = msgspec.structs.replace(model.spec.tasks, score=Score(kind="maxsim"))
    model.spec = msgspec.structs.replace(model.spec, tasks=tasks)
    return model


def plans(model: EncoderModel) -> list[Plan]:
    def encoded(text: str, **params: object) -> Plan:
        request = EncodeRequest([Item(text=text)], msgspec.convert(params, EncodeParams))
        return encode.plan(model, model.spec, request)

    return [
        encoded("hello world", output_types=["dense"]),
        encoded("ship", output_types=["dense"], options={"normalize": False}),
        encoded("lighthouse ship", output_types=["sparse"]),
        encoded("hello", output_types=["multivector", "dense"]),
        encoded("world", output_types=["dense"], options={"muvera": True}),
        score.plan(model, model.spec, ScoreRequest(Item(text="hello"), [Item(text="ship"), Item(text="world")])),
    ]


class Mute(Gated):
    """Fails with what cannot be said."""

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        super().forward(rows, wanted)

        class UnsayableError(RuntimeError):
            def __str__(self) -> str:
                raise KeyError("message")

        raise UnsayableError


async def test_an_error_that_cannot_be_said_fails_its_requests_and_stops_no_stream() -> None:
    held, mute, good = Gated(), Mute(), Gated()
    for model in (mute, good):
        model.gate.set()
    async with running() as executor, asyncio.timeout(30):
        first = await busy(executor, held)
        failing = await queued(executor, mute, rows(1), rows(2))
        held.gate.set()
        await asyncio.wait([first, *failing])
        assert [type(each.exception()).__name__ for each in failing] == ["UnsayableError"] * 2
        assert len((await executor.forward(good, rows(3), ("dense",))).outputs["dense"]) == 1


def same(one: Outputs, other: Outputs) -> bool:
    return all(
        np.array_equal(a.indices, b.indices) and np.allclose(a.values, b.values, atol=1e-6)
        if isinstance(a, SparseRow) and isinstance(b, SparseRow)
        else np.allclose(a, b, atol=1e-6)
        for a, b in zip(one, other, strict=True)
    )


async def test_other_heads_and_operations_of_a_model_go_together_and_each_gets_its_own(bge: EncoderModel) -> None:
    asked, held = plans(bge), Gated()
    assert len({tuple(plan.heads) for plan in asked}) == 5, "what they want is not the same"
    async with running() as executor, asyncio.timeout(30):
        first = await busy(executor, held)
        waiting = []
        for plan in asked:
            waiting.append(asyncio.create_task(executor.forward(bge, plan.rows, plan.heads)))
            await asyncio.sleep(0)
        held.gate.set()
        together = await asyncio.gather(*waiting)
        await first
        assert executor.batches == 2, "the one that was held, and one for all"
        for plan, mine in zip(asked, together, strict=True):
            alone = await executor.forward(bge, plan.rows, plan.heads)
            assert mine.outputs.keys() == alone.outputs.keys() == set(plan.heads)
            assert all(same(mine.outputs[head], alone.outputs[head]) for head in plan.heads)
