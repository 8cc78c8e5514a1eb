"""What answers shrink to, and at what rate: whose figures decide what ``sie_ingress.compression`` compresses.

Vectors are random directions, which no codec can tell from a model's; entities and scores have a catalogue's words.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable

import numpy as np

from bench.table import show
from sie_ingress.compression import SMALLEST_BYTES, pack
from sie_sdk import replies, wire
from sie_sdk.outputs import DenseOutput, SparseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Entity, OutputDtype, Timing, Usage

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXTS, DIMS, TRIES = 256, 384, 15
NAMES = ("Ada Lovelace", "London", "Turin", "Grace Hopper", "Paris", "Berlin", "Analytical Engine Ltd")
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zstd 1": lambda body: zstd.compress(body, 1),
    "zstd 3": lambda body: zstd.compress(body, 3),
    "gzip 1": lambda body: zlib.compress(body, 1, wbits=31),
    "gzip 6": lambda body: zlib.compress(body, 6, wbits=31),
}


def main() -> None:
    """Print the table."""
    rows = [_row(name, body, wire.MSGPACK) for name, body in _bodies().items()]
    rows += [_row(f"{name}, JSON", replies.to_json(body), wire.JSON) for name, body in _bodies().items()]
    show("Compressed answers: bytes left, and MB/s", ["answer", "bytes", *CODECS, "sent"], rows)


def _bodies() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(TEXTS, DIMS)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scale = np.abs(rows).max(axis=1) / 127
    ids, timing, usage = [None] * TEXTS, Timing(), Usage(input_tokens=9)

    def dense(values: np.ndarray, dtype: OutputDtype) -> bytes:
        output = DenseOutput(values, DIMS, dtype, scale.astype(np.float32) if dtype == "int8" else None)
        return replies.encode("org/model", ids[: len(values)], {"dense": output}, timing, usage)

    weights = [
        (np.sort(random.choice(30_522, 120, replace=False)).astype("i4"), random.random(120).astype("<f4"))
        for _ in range(TEXTS)
    ]
    found = [
        Extracted(
            [Entity(str(random.choice(NAMES)), "PER", float(random.random()), i * 9, i * 9 + 7) for i in range(8)], []
        )
        for _ in range(TEXTS)
    ]
    return {
        "one vector": dense(rows[:1], "float32"),
        f"{TEXTS} vectors": dense(rows, "float32"),
        f"{TEXTS} in float16": dense(rows.astype("<f2"), "float16"),
        f"{TEXTS} in int8": dense(np.round(rows / scale[:, None]).astype(np.int8), "int8"),
        f"{TEXTS} in bits": dense(np.packbits(rows > 0, axis=1), "binary"),
        f"{TEXTS} sparse": replies.encode(
            "org/model", ids, {"sparse": SparseOutput(weights, 30_522, "float32")}, timing, usage
        ),
        "1000 scores": replies.score(
            "org/model", random.normal(size=1000).astype(np.float32), [None] * 1000, None, timing, usage
        ),
        f"entities of {TEXTS}": replies.extract("org/model", ids, found, timing, usage),
    }


def _row(name: str, body: bytes, kind: str) -> list[str]:
    packed = None if len(body) < SMALLEST_BYTES else pack(body, "zstd", kind)
    sent = "as it is" if packed is None else f"{len(packed):,}"
    return [name, f"{len(body):,}", *(_measured(codec, body) for codec in CODECS.values()), sent]


def _measured(codec: Callable[[bytes], bytes], body: bytes) -> str:
    took, left = float("inf"), 0
    for _ in range(TRIES):
        began = time.perf_counter()
        left = len(codec(body))
        took = min(took, time.perf_counter() - began)
    return f"{left / len(body):.2f}, {len(body) / took / 1e6:.0f}"
