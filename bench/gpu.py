"""The engine on a GPU: one forward pass by its size, requests through the executor, and the whole server.

    python -m bench gpu [--tokenizer FILE] [--seconds S] [--server]
    python -m bench gpu --no-passes                                  # what a GPU waits for; needs none

The model is BERT base by its sizes, with random weights: what a pass takes does not depend on them. Rates are also
given as a share of what this GPU does in matrix products of the model's shapes, and sentence-transformers, where it is
installed, computes the same texts in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from safetensors.torch import save_file

from bench import servers
from bench.corpus import Words
from bench.installs import own_weights
from bench.load import Request, drive, post
from bench.table import show
from sie_broker.records import Lane, Work
from sie_bundle import bundle
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.packing import pack
from sie_bundle.engine.row import Row, row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel, Model, load
from sie_bundle.operations import encode
from sie_bundle.operations.aside import GPU_INLINE_BYTES
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Tasks
from sie_config.registry import Registry
from sie_local.ports import free_port
from sie_sdk import wire
from sie_sdk.types import EncodeRequest, Item, Priority

SIZE, INNER, LAYERS, VOCABULARY = 768, 3072, 12, 30_522
LENGTHS = (50, 512)
BATCHES = (64, 1024, 4096, 16_384, 32_768, 65_536)
"""Tokens of the passes that are measured."""
TEXTS, CALLERS = 16, 192
"""Texts of a request, and requests at a time."""
SHAPES = ((SIZE, 3 * SIZE), (SIZE, SIZE), (SIZE, INNER), (INNER, SIZE))
"""The products of a layer, in and out."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of BERT's; default: the default model's")
    parser.add_argument("--server", action="store_true", help="the whole server, too")
    parser.add_argument("--no-passes", action="store_true", help="requests alone, whose passes cost nothing")
    asked = parser.parse_args()
    sys.setswitchinterval(bundle.LONG_SWITCH_S)
    if not torch.cuda.is_available() and not asked.no_passes:
        print("GPU: no CUDA device here.")
        return
    if asked.tokenizer is None:
        asked.tokenizer = own_weights() / "tokenizer.json"
    with tempfile.TemporaryDirectory(prefix="sie-bench-gpu-") as folder:
        weights = Path(folder) / "weights" / "bert-base"
        checkpoint = Checkpoint(bert_base(weights, asked.tokenizer), weights)
        if asked.no_passes:
            requests(_Idle(checkpoint), asked.tokenizer, asked.seconds)
            return
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
        model = load(checkpoint, "cuda")
        passes(model)
        requests(model, asked.tokenizer, asked.seconds)
        library(weights, asked.tokenizer, asked.seconds)
        if asked.server:
            del model
            torch.cuda.empty_cache()
            server(Path(folder), asked.tokenizer, asked.seconds)


def bert_base(folder: Path, tokenizer: Path) -> ModelSpec:
    """A checkpoint with random weights, and its spec."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": SIZE, "intermediate_size": INNER}
    config |= {"num_attention_heads": 12, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "pad_token_id": 0}
    config |= {"max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(_tables())
    for i in range(LAYERS):
        tensors |= {f"encoder.layer.{i}.{name}": tensor for name, tensor in _layer()}
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return ModelSpec(
        id="bench/bert-base",
        family="bert",
        tasks=Tasks(dense=Dense(dim=SIZE, pooling="mean")),
        sources=(LocalSource(path="bert-base"),),
        max_sequence_length=512,
        revision="random",
    )


def _tables() -> Iterator[tuple[str, torch.Tensor]]:
    for name, rows in (("word", VOCABULARY), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{name}_embeddings.weight", torch.randn(rows, SIZE) * 0.02
    yield from _norm("embeddings.LayerNorm")


def _layer() -> Iterator[tuple[str, torch.Tensor]]:
    names = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense"]
    for name, wide, narrow in (
        *((name, SIZE, SIZE) for name in names),
        ("intermediate.dense", INNER, SIZE),
        ("output.dense", SIZE, INNER),
    ):
        yield f"{name}.weight", torch.randn(wide, narrow) * 0.02
        yield f"{name}.bias", torch.zeros(wide)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        yield from _norm(name)


def _norm(name: str) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.ones(SIZE)
    yield f"{name}.bias", torch.zeros(SIZE)


def passes(model: Model) -> None:
    """One forward pass after the other, by tokens of a batch."""
    rows = []
    limit = {length: matrix_seconds(length) for length in LENGTHS}
    for length in LENGTHS:
        for tokens in BATCHES:
            some = [row_of(length, seed) for seed in range(max(1, tokens // length))]
            taken = median(partial(model.forward, some, {"dense": range(len(some))}))
            rate = sum(map(len, some)) / taken
            flops = rate * flops_per_token(length) / 1e12
            rows.append(
                [
                    f"{len(some)} of {length}",
                    f"{taken * 1e3:.2f}",
                    f"{rate / 1e6:.3f}",
                    f"{flops:.0f}",
                    f"{100 * rate * limit[length]:.0f} %",
                ]
            )
    show(
        "BERT base, one pass after the other",
        ["texts of tokens", "ms", "M tokens/s", "TFLOP/s", "of matrix rate"],
        rows,
    )


def flops_per_token(length: int) -> float:
    """Products of the linear layers and of attention."""
    return LAYERS * (2.0 * sum(wide * narrow for wide, narrow in SHAPES) + 4.0 * length * SIZE)


def matrix_seconds(length: int, tokens: int = 65_536) -> float:
    """Seconds a token takes when nothing is done but the linear layers' products."""
    taken = 0.0
    for narrow, wide in SHAPES:
        x = torch.randn(tokens, narrow, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(wide, narrow, device="cuda", dtype=torch.bfloat16)

        def product(x: torch.Tensor = x, weight: torch.Tensor = weight) -> None:
            for _ in range(10):
                torch.nn.functional.linear(x, weight)
            torch.cuda.synchronize()

        taken += median(product) / 10
    return LAYERS * taken / tokens


def median(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Seconds of one run, of as many as there is time for, after two."""
    run()
    run()
    samples: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until or len(samples) < 3:
        run()
        samples.append(time.perf_counter() - began)
    return statistics.median(samples)


def row_of(length: int, seed: int) -> Row:
    """Random tokens between [CLS] and [SEP]."""
    return row([101, *np.random.default_rng(seed).integers(1000, 30_000, size=length - 2).tolist(), 102])


class Measured(NamedTuple):
    """Of one way of asking."""

    tokens_s: float
    p50_ms: float
    p99_ms: float


def requests(model: Model, tokenizer: Path, seconds: float) -> None:
    """From texts to a reply's bytes, many callers at a time, as an operation does it; by streams and batch."""
    rows = []
    for length in LENGTHS:
        bodies = _requests(tokenizer, length)
        for streams, batch in ((1, 32_768), (2, 32_768), (2, 65_536)):
            got = asyncio.run(_asked(model, bodies, TEXTS * length, streams, batch, seconds))
            rows.append(
                [
                    f"{TEXTS} of {length}",
                    str(streams),
                    str(batch),
                    f"{got.tokens_s / 1e6:.3f}",
                    f"{got.p50_ms:.1f}",
                    f"{got.p99_ms:.1f}",
                ]
            )
    head = ["texts of tokens", "streams", "batch tokens", "M tokens/s", "p50 ms", "p99 ms"]
    show(f"From texts to replies in one process, {CALLERS} requests at a time", head, rows)


def _requests(tokenizer: Path, length: int, texts: int = TEXTS, count: int = 256) -> list[bytes]:
    words = Words(tokenizer)
    made = [words.text(length).text for _ in range(256)]
    return [
        wire.request_body(EncodeRequest([Item(text=made[(i * texts + j) % 256]) for j in range(texts)]))
        for i in range(count)
    ]


class _Idle(EncoderModel):
    """Its passes lay out their batch, and no more: what is left of a request is what a GPU waits for."""

    _vectors = np.full((max(BATCHES) // min(LENGTHS), SIZE), SIZE**-0.5, np.float32)

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        pack(rows, torch.device("cpu"))
        return {head: self._vectors[: len(texts)] for head, texts in wanted.items()}


class _Held:
    """A residency that has one model, and gives that to everybody."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def model(self, spec: ModelSpec, lora: str | None = None) -> Model:
        return self._model


async def _asked(model: Model, bodies: list[bytes], tokens: int, streams: int, batch: int, seconds: float) -> Measured:
    """``tokens`` are in each of the requests."""
    executor = Executor(max_batch_tokens=batch, max_batch_s=0.2, streams=streams, threads=1)
    threads: dict[Priority, ThreadPoolExecutor] = {"interactive": ThreadPoolExecutor(bundle.text_threads())}
    held, registry = cast(Residency, _Held(model)), Registry([model.spec])
    operation = Operation(encode.parse, encode.plan, registry, held, executor, threads, GPU_INLINE_BYTES)
    took: list[float] = []
    source = cycle(bodies)
    warm = time.perf_counter() + 1.0
    until = warm + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < until:
            await operation(_work(next(source)))
            # Whenever it began: those under way at the end stand for those at the beginning.
            if warm < (ended := time.perf_counter()) <= until:
                took.append(ended - began)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await asyncio.to_thread(executor.close)
    threads["interactive"].shutdown()
    cut = statistics.quantiles(took, n=100)
    return Measured(tokens * len(took) / seconds, cut[49] * 1e3, cut[98] * 1e3)


def _work(body: bytes) -> Work:
    lane = Lane(pool="default", bundle="default", profile="cpu")
    return Work(id="1", op="encode", lane=lane, model="bench/bert-base", data=body, time=time.time())


def library(folder: Path, tokenizer: Path, seconds: float) -> None:
    """sentence-transformers, where it is installed: all texts in one call, which it sorts, pads and computes."""
    try:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("\nsentence-transformers is not installed here.")
        return
    model = SentenceTransformer(str(folder), device="cuda", model_kwargs={"dtype": torch.bfloat16})
    model.max_seq_length = 512
    rows = []
    for length in LENGTHS:
        words = Words(tokenizer)
        texts = [words.text(length).text for _ in range(256)] * (TEXTS * CALLERS // 256)
        for batch in (64, 512):
            rate = len(texts) * length / median(partial(model.encode, texts, batch_size=batch), seconds)
            rows.append([f"{len(texts)} of {length}", str(batch), f"{rate / 1e6:.3f}"])
    show("sentence-transformers, in bfloat16", ["texts of tokens", "texts a batch", "M tokens/s"], rows)


def server(folder: Path, tokenizer: Path, seconds: float) -> None:
    """``sie serve`` on the GPU, over HTTP."""
    rows = []
    with _serving(folder) as port:
        for length in LENGTHS:
            for texts, clients in ((1, 1), (1, 256), (TEXTS, 64), (TEXTS, CALLERS)):
                bodies = _requests(tokenizer, length, texts)
                made = cycle(
                    [Request(post("/v1/encode/bench/bert-base", body, wire.MSGPACK), texts) for body in bodies]
                )
                drive(port, made, clients, 1.0)
                got = drive(port, made, clients, seconds)
                cut = statistics.quantiles(got.latencies, n=100)
                rate = got.items * length / got.seconds
                rows.append([f"{texts} of {length}", str(clients), f"{rate / 1e6:.3f}"])
                rows[-1] += [f"{cut[49] * 1e3:.1f}", f"{cut[98] * 1e3:.1f}"]
    show("sie serve, over HTTP", ["texts of tokens", "clients", "M tokens/s", "p50 ms", "p99 ms"], rows)


@contextmanager
def _serving(folder: Path) -> Iterator[int]:
    (specs := folder / "specs").mkdir()
    (specs / "bert-base.yaml").write_text(
        "{id: bench/bert-base, revision: random, family: bert, tasks: {dense: {dim: 768, pooling: mean}}, "
        "max_sequence_length: 512, licence: none, parameters: 109482240, bytes: 218964480, "
        "sources: [{kind: local, path: bert-base}]}"
    )
    port = free_port()
    os.environ |= {"SIE_DEVICE": os.environ.get("SIE_DEVICE", "cuda"), "SIE_WEIGHTS_DIR": str(folder / "weights")}
    with servers.running("serve", "--port", str(port), "--models", str(specs)):
        servers.wait_ready(f"http://127.0.0.1:{port}", 120)
        yield port


if __name__ == "__main__":
    main()
