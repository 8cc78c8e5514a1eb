"""What coming and going models cost, as two tables: the way back from host memory, and serving while another loads.

    python -m bench residency [--rounds N]

Every figure is of one process, without queues and HTTP. Serving alone and serving beside loads take turns, and their
ratio is taken turn by turn, so that a busy neighbour disturbs both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.numpy import save_file

from bench.table import show
from sie_bundle.commands import DEFAULT_MODEL
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.row import Row, row
from sie_bundle.models.model import Model
from sie_bundle.residency.residency import Residency
from sie_bundle.settings import Settings
from sie_bundle.weights import weights
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Tasks
from sie_sdk import settings

SWAPS = 200
TURN_S = 4.0
CLIENTS, DOCUMENTS = 4, 16
BASE = {
    "model_type": "bert",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
"""The shape of BERT base: 438 MB in float32."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    setting = settings.read(Settings)
    small = catalog.load()[DEFAULT_MODEL]
    found = weights.resolve(small, Path(setting.weights_dir) if setting.weights_dir else None, Path(setting.cache_dir))
    small = msgspec.structs.replace(small, sources=(LocalSource(path=str(found.folder)),))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        large = random_base(Path(folder) / "base", found.folder)
        asyncio.run(swaps(small))
        asyncio.run(loads(small, large, rounds))


async def swaps(spec: ModelSpec) -> None:
    """Two models that push each other out, asked for in turn: alone, then while a third one serves."""
    rows = []
    for serving in (False, True):
        for kept in (1 << 33, 0):
            one, other, third = (msgspec.structs.replace(spec, id=f"bench/{name}") for name in ("a", "b", "c"))
            size = (await residency(1 << 33).model(one)).bytes
            executor = Executor(max_batch_s=0.2)
            limit, pinned = size * (2 if serving else 1), [third.id] if serving else []
            models = residency(limit, executor, kept, pinned)
            busy = asyncio.create_task(_for_ever(executor, await models.model(third)) if serving else asyncio.sleep(0))
            taken = []
            for number in range((SWAPS if kept else SWAPS // 4) + 4):
                began = time.perf_counter()
                await models.model((one, other)[number % 2])
                taken.append((time.perf_counter() - began) * 1e3)
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)
            await asyncio.to_thread(executor.close)
            models.close()
            p50, p99 = np.percentile(taken[4:], [50, 99])  # the first ones come from disk
            load = "while another serves" if serving else "idle"
            rows.append(
                ["host memory" if kept else "disk", load, str(len(taken) - 4), f"{p50:.0f} ms", f"{p99:.0f} ms"]
            )
    megabytes = sum(path.stat().st_size for path in _folder(spec).glob("*.safetensors")) / 1e6
    show(f"Back to the device: a model of {megabytes:.0f} MB", ["from", "machine", "times", "p50", "p99"], rows)


async def loads(small: ModelSpec, large: ModelSpec, rounds: int) -> None:
    """What a resident model serves while others load, one after the other and each from disk."""
    one, other = (msgspec.structs.replace(large, id=f"bench/{name}") for name in ("base-a", "base-b"))
    alone_bytes = [(await residency(1 << 33).model(spec)).bytes for spec in (small, large)]
    executor = Executor(max_batch_s=0.2)
    models = residency(sum(alone_bytes), executor, host_bytes=0, pinned=[small.id])
    model = await models.model(small)
    await serve(executor, model, 1.0)
    alone: list[float] = []
    beside: list[float] = []
    taken: list[float] = []
    for _ in range(rounds):
        alone.append(await serve(executor, model, TURN_S))
        loading = asyncio.create_task(_load_in_turn(models, (one, other), taken))
        beside.append(await serve(executor, model, TURN_S))
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await models.model(one)  # a load is not stopped by its caller's leaving: it ends before the next turn
        await models.model(other)
    await asyncio.to_thread(executor.close)
    models.close()
    ratio = statistics.median(one / other for one, other in zip(beside, alone, strict=True))
    row_ = [
        f"{statistics.median(alone):.0f} documents/s",
        f"{statistics.median(beside):.0f} documents/s",
        f"{ratio:.0%}",
        f"{len(taken)} in {statistics.median(taken):.2f} s each" if taken else "none ended",
    ]
    show("A resident model while one of 438 MB loads", ["alone", "beside loads", "kept", "loads"], [row_])


async def serve(executor: Executor, model: Model, seconds: float) -> float:
    """Documents per second of some clients that ask as fast as they are answered."""
    until, done = time.perf_counter() + seconds, 0

    async def client(seed: int) -> None:
        nonlocal done
        requests = [documents(seed * 100 + number) for number in range(8)]
        number = 0
        while time.perf_counter() < until:
            await executor.forward(model, requests[number % len(requests)], ["dense"])
            done += DOCUMENTS
            number += 1

    began = time.perf_counter()
    await asyncio.gather(*(client(seed) for seed in range(CLIENTS)))
    return done / (time.perf_counter() - began)


async def _for_ever(executor: Executor, model: Model) -> None:
    await serve(executor, model, 1e9)


async def _load_in_turn(models: Residency, specs: tuple[ModelSpec, ModelSpec], taken: list[float]) -> None:
    number = 0
    while True:
        began = time.perf_counter()
        await models.model(specs[number % 2])
        taken.append(time.perf_counter() - began)
        number += 1


def residency(
    max_bytes: int, executor: Executor | None = None, host_bytes: int = 1 << 33, pinned: Sequence[str] = ()
) -> Residency:
    """As a bundle has it."""
    return Residency(
        None,
        Path("absent"),
        max_bytes,
        host_bytes=host_bytes,
        pressure_percent=100,
        pinned=pinned,
        progress=lambda: executor.batches if executor else 0,
    )


def documents(seed: int) -> list[Row]:
    """Random tokens, 20 to 256 a document."""
    random = np.random.default_rng(seed)
    return [row(random.integers(1000, 30_000, size=int(length))) for length in random.integers(20, 257, size=DOCUMENTS)]


def random_base(folder: Path, tokenizer: Path) -> ModelSpec:
    """BERT base with random weights in ``folder``, with the tokenizer of another folder."""
    folder.mkdir()
    shutil.copyfile(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(BASE))
    random, tensors = np.random.default_rng(0), {}

    def weight(name: str, *shape: int) -> None:
        tensors[name] = random.standard_normal(shape, dtype=np.float32) * 0.02

    def norm(name: str) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.ones(768, np.float32), np.zeros(768, np.float32)

    for name, size in (("word", 30522), ("position", 512), ("token_type", 2)):
        weight(f"embeddings.{name}_embeddings.weight", size, 768)
    norm("embeddings.LayerNorm")
    for i in range(12):
        layer = f"encoder.layer.{i}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            weight(f"{layer}.{part}.weight", 768, 768)
            weight(f"{layer}.{part}.bias", 768)
        weight(f"{layer}.intermediate.dense.weight", 3072, 768)
        weight(f"{layer}.intermediate.dense.bias", 3072)
        weight(f"{layer}.output.dense.weight", 768, 3072)
        weight(f"{layer}.output.dense.bias", 768)
        norm(f"{layer}.attention.output.LayerNorm")
        norm(f"{layer}.output.LayerNorm")
    save_file(tensors, folder / "model.safetensors")
    sources = (LocalSource(path=str(folder)),)
    tasks = Tasks(dense=Dense(dim=768))
    return ModelSpec("bench/base", "bert", tasks, sources, max_sequence_length=512, revision="random")


def _folder(spec: ModelSpec) -> Path:
    source = spec.sources[0]
    assert isinstance(source, LocalSource)
    return Path(source.path)


if __name__ == "__main__":
    main()
