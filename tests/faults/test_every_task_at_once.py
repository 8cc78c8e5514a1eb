"""Every task of the engine at once, more models than there is room for: no answer is wrong, bad input fails alone.

Through the operations a bundle registers, from the bytes of a request to those of its reply.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_broker.records import Lane, Work
from sie_bundle.engine.executor import Executor
from sie_bundle.operations import encode, extract, score
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Score, Tasks
from sie_config.registry import Registry
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import (
    EncodeParams,
    EncodeRequest,
    ExtractParams,
    ExtractRequest,
    Item,
    Priority,
    ScoreRequest,
)
from tests.bundle.test_families import load as random_model
from tests.golden import gliner_folder
from tests.golden.test_golden_gliner import GOLDEN

TASKS = {
    "bert": None,
    "bge-m3": None,
    "roberta-splade": None,
    "bert-reranker": Tasks(score=Score()),
    "qwen3-reranker": None,
    "bert-ner": Tasks(extract=Extract(kind="entities", overlap=4)),
    "bert-nli": Tasks(extract=Extract(kind="classes")),
    "modernbert-nli": Tasks(extract=Extract(kind="entailment")),
    "gliner": Tasks(extract=Extract(kind="spans")),
}
"""The kinds of models, and their tasks where those are not all that their checkpoints have (`tasks_of`)."""
CLIENTS, TURNS = 24, 20
STRICT = {"overflow_policy": "error"}
WORDS = ["hello", "world", "ship", "lighthouse", "abc", "query", "coffee", "yes", "no"]
LANE = Lane(pool="default", bundle="default", profile="cpu")


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    made = {}
    for kind, tasks in TASKS.items():
        folder = tmp_path_factory.mktemp(kind)
        if kind == "gliner":
            made[kind] = gliner(gliner_folder.make("bert", folder, GOLDEN["models"]["bert"]["config"]))
            continue
        spec = random_model(kind, folder).spec
        if kind == "bge-m3":
            tasks = msgspec.structs.replace(spec.tasks, score=Score(kind="maxsim"))
        made[kind] = msgspec.structs.replace(spec, tasks=tasks or spec.tasks)
    return made


def gliner(folder: Path) -> ModelSpec:
    return ModelSpec(
        id="random-init/gliner",
        family="gliner",
        tasks=TASKS["gliner"] or Tasks(),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=64,
        revision="random",
    )


def texts(chance: random.Random, most: int = 4, words: int = 30) -> list[Item]:
    return [
        Item(text=" ".join(chance.choices(WORDS, k=chance.randint(0, words)))) for _ in range(chance.randint(1, most))
    ]


def requests(chance: random.Random) -> tuple[str, str, wire.Request]:
    """A kind of model, an operation and a request it can answer."""
    kind = chance.choice([*TASKS])
    labels = chance.sample(WORDS, k=chance.randint(1, 3))
    match kind:
        case "bert":
            dtype: Any = chance.choice(["float32", "int8", "uint8", "float16", "binary"])
            return kind, "encode", EncodeRequest(texts(chance), EncodeParams(output_dtype=dtype))
        case "bge-m3" if chance.random() < 0.3:
            return kind, "score", ScoreRequest(texts(chance, 1)[0], texts(chance))
        case "bge-m3" if chance.random() < 0.3:
            options = {"muvera": {"repetitions": 4, "final_dims": 256}, "is_query": chance.random() < 0.5}
            return kind, "encode", EncodeRequest(texts(chance), EncodeParams(options=options))
        case "bge-m3":
            wanted = chance.sample(["dense", "sparse", "multivector"], k=chance.randint(1, 3))
            return kind, "encode", EncodeRequest(texts(chance), EncodeParams(output_types=wanted))  # type: ignore[arg-type]
        case "roberta-splade":
            return kind, "encode", EncodeRequest(texts(chance), EncodeParams(output_types=["sparse"]))
        case "bert-reranker" | "qwen3-reranker":
            return kind, "score", ScoreRequest(texts(chance, 1)[0], texts(chance))
        case "bert-ner":
            return kind, "extract", ExtractRequest(texts(chance, words=150))
        case "bert-nli":
            return (
                kind,
                "extract",
                ExtractRequest(texts(chance), ExtractParams(options={"multi_label": len(labels) > 1})),
            )
        case _:
            params = ExtractParams(labels=labels, options={"threshold": 0.0, "multi_label": len(labels) > 2})
            return kind, "extract", ExtractRequest(texts(chance), params)


def bad(chance: random.Random) -> tuple[str, str, wire.Request]:
    """What is refused."""
    item = Item(text="ship")
    every: list[tuple[str, str, wire.Request]] = [
        ("bert", "encode", EncodeRequest([item], EncodeParams(options={"y": 1}))),
        ("bert", "encode", EncodeRequest([item], EncodeParams(output_types=["sparse"]))),
        ("roberta-splade", "encode", EncodeRequest([item], EncodeParams(options={"muvera": True}))),
        ("bert", "encode", EncodeRequest([item, Item(text="ship " * 99)], EncodeParams(options=STRICT))),
        ("bert-reranker", "score", ScoreRequest(item, [item, Item(text="ship " * 99)], options=STRICT)),
        ("bert-ner", "extract", ExtractRequest([item], ExtractParams(labels=["none"]))),
        ("modernbert-nli", "extract", ExtractRequest([item])),
    ]
    return chance.choice(every)


def numbers(op: str, body: bytes) -> list[Any]:
    """What a reply says, without times: labels and places as they are, numbers to be compared closely."""
    if op == "score":
        ranked = results.read_score(body).scores
        return [[entry.score for entry in sorted(ranked, key=lambda entry: entry.index)]]
    if op == "extract":
        found = results.read_extract(body)
        entities = [[(e.label, e.start, e.end, e.score) for e in each.entities] for each in found]
        labels = [sorted((c.label, 0, 0, c.score) for c in each.classifications) for each in found]
        return [[*some, *others] for some, others in zip(entities, labels, strict=True)]
    flat: list[Any] = []
    for result in results.read_encode(body):
        flat.append(None if result.dense is None else _bits(result.dense))
        sparse = result.sparse
        flat.append(None if sparse is None else np.r_[sparse.indices.astype(np.float32), sparse.values])
        flat.append(result.multivector)
    return flat


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and one and isinstance(one[0], tuple):
        return [entry[:3] for entry in one] == [entry[:3] for entry in other] and np.allclose(
            [entry[3] for entry in one], [entry[3] for entry in other], atol=1e-4
        )
    if one is None or other is None:
        return one is other
    # An int8 value may round to its neighbour.
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other, atol=1.01 if _whole(one) else 2e-4))


def _bits(dense: Any) -> Any:
    """Numbers as they are; packed bits one by one, as halves, so that none may be its neighbour."""
    return (0.5 * np.unpackbits(dense) if dense.dtype == np.uint8 and dense.size < 32 else dense).astype(np.float32)


def _whole(values: Any) -> bool:
    return np.size(values) > 0 and bool(np.all(np.asarray(values) == np.round(values)))


class Desk:
    """The operations over one device with room for so many bytes of models."""

    def __init__(self, specs: dict[str, ModelSpec], cache: Path, max_bytes: int) -> None:
        self.loads: list[str] = []
        registry = Registry(specs.values())
        self.residency = Residency(None, cache, max_bytes, self.loads.append, precision="float32")
        self.executor = Executor(max_batch_tokens=256, streams=2, threads=1, relieve=self.residency.relieve)
        self.threads = ThreadPoolExecutor(2)
        threads: dict[Priority, ThreadPoolExecutor] = {"interactive": self.threads, "bulk": self.threads}
        parts = (registry, self.residency, self.executor, threads)
        self.run: dict[str, Callable[[Work], Any]] = {
            "encode": Operation(encode.parse, encode.plan, *parts),
            "score": Operation(score.parse, score.plan, *parts),
            "extract": Operation(extract.parse, extract.plan, *parts),
        }
        self.specs = specs

    async def ask(self, kind: str, op: str, request: wire.Request) -> list[Any]:
        body = wire.request_body(request)
        work = Work(id="w", op=op, lane=LANE, model=self.specs[kind].id, data=body, time=time.time())
        return numbers(op, await self.run[op](work))

    async def close(self) -> None:
        await asyncio.to_thread(self.executor.close)
        self.residency.close()
        self.threads.shutdown()


async def test_every_task_under_mixed_load_with_evictions_gives_no_wrong_answer(
    specs: dict[str, ModelSpec], tmp_path: Path
) -> None:
    chance = random.Random(11)
    asked = [requests(chance) for _ in range(CLIENTS * TURNS)]
    calm = Desk(specs, tmp_path, 1 << 30)
    expected = [await calm.ask(*each) for each in asked]
    size = max(calm.residency.bytes // len(TASKS), 1)
    alone = calm.executor.batches
    await calm.close()
    busy = Desk(specs, tmp_path, 4 * size)
    pending = list(zip(asked, expected, strict=True))
    wrong: list[str] = []
    refused = 0

    async def client() -> None:
        nonlocal refused
        while pending:
            each, wanted = pending.pop()
            if chance.random() < 0.2:
                with pytest.raises(InvalidInputError):
                    await busy.ask(*bad(chance))
                refused += 1
            got = await busy.ask(*each)
            if len(got) != len(wanted) or not all(same(a, b) for a, b in zip(got, wanted, strict=True)):
                wrong.append(f"{each[0]} {each[1]}")

    try:
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    finally:
        await busy.close()
    assert not wrong
    assert refused > 0
    assert len(busy.loads) > len(TASKS), "models came back after they were pushed out"
    assert busy.executor.batches < alone, "requests shared passes"
