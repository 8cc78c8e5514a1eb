"""More models than there is room for, under load: every answer is right, whoever was evicted meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Floats
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from tests import tiny_model

MODELS, CLIENTS, TURNS = 4, 40, 6
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    """Models of the same shape with different weights: a mix-up gives a wrong vector and no error."""
    folder = tmp_path_factory.mktemp("models")
    return [
        tiny_model.spec(tiny_model.make(folder / str(seed), seed=seed), f"test/tiny-{seed}") for seed in range(MODELS)
    ]


def texts(chance: random.Random) -> list[str]:
    return ["".join(chance.choices(LETTERS, k=chance.randint(1, 20))) for _ in range(chance.randint(1, 4))]


async def encode(residency: Residency, executor: Executor, spec: ModelSpec, some: list[str]) -> Floats:
    """What a bundle does with a request, without the wire."""
    model = await residency.model(spec)
    rows = model.tokenizer.rows(some, spec.max_sequence_length)
    done = await executor.forward(model, rows, ["dense"])
    dense = done.outputs["dense"]
    assert isinstance(dense, np.ndarray)
    return dense


@pytest.mark.parametrize("streams", [1, 2])
async def test_models_that_push_each_other_out_answer_every_request_right(
    specs: list[ModelSpec], tmp_path: Path, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_bundle.residency.residency.RELEASE_S", 60.0)  # the loop also computes what is expected
    chance = random.Random(7)
    alone = [tiny_model.load(spec, Path(spec.sources[0].path)) for spec in specs]  # type: ignore[union-attr]
    loads: list[str] = []
    size = alone[0].bytes
    residency = Residency(None, tmp_path, 2 * size, loads.append, precision="float32")
    executor = Executor(max_batch_tokens=64, streams=streams, relieve=residency.relieve)
    over = 0

    async def request() -> None:
        nonlocal over
        which = chance.randrange(MODELS)
        some = texts(chance)
        got = await encode(residency, executor, specs[which], some)
        model = alone[which]
        expected = [tiny_model.vectors(model, model.tokenizer.rows([text], 32))[0] for text in some]
        np.testing.assert_allclose(got, expected, atol=1e-5)
        over = max(over, residency.bytes)

    async def client() -> None:
        for _ in range(TURNS):
            await request()

    try:
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    finally:
        await asyncio.to_thread(executor.close)
        residency.close()
    assert len(loads) > MODELS, "models came back after they were pushed out"
    assert len(residency.resident()) <= 2
    assert over <= 2 * size, "the device never holds more than its limit"


async def test_a_spec_that_changes_under_load_never_answers_with_the_other_models_vectors(
    specs: list[ModelSpec], tmp_path: Path
) -> None:
    first = specs[0]
    second = msgspec.structs.replace(specs[1], id=first.id)
    expected = {}
    for spec, where in ((first, specs[0]), (second, specs[1])):
        model = tiny_model.load(where, Path(where.sources[0].path))  # type: ignore[union-attr]
        expected[spec] = tiny_model.vectors(model, model.tokenizer.rows(["hello"], 32))
    residency = Residency(None, tmp_path, 1 << 30, precision="float32")
    executor = Executor()
    try:
        asked = [first, second] * 20
        answers = await asyncio.gather(*(encode(residency, executor, spec, ["hello"]) for spec in asked))
    finally:
        await asyncio.to_thread(executor.close)
        residency.close()
    for spec, answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer, expected[spec], atol=1e-5)


async def test_a_device_out_of_memory_is_relieved_by_models_that_are_idle(
    specs: list[ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    residency = Residency(None, tmp_path, 1 << 30, precision="float32")
    executor = Executor(relieve=residency.relieve)
    for spec in specs:
        await residency.model(spec)
    model = await residency.model(specs[0])
    rows = model.tokenizer.rows(["hello"], 32)
    expected = tiny_model.vectors(model, rows)
    forward, tries = model.forward, threading.Semaphore(0)

    def short(*args: object) -> object:
        tries.release()
        if len(residency.resident()) > 2:
            raise MemoryError
        return forward(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "forward", short)
    try:
        done = await executor.forward(model, rows, ["dense"])
    finally:
        await asyncio.to_thread(executor.close)
        residency.close()
    np.testing.assert_allclose(done.outputs["dense"], expected, atol=1e-6)
    assert specs[0].id in residency.resident() and len(residency.resident()) == 2
