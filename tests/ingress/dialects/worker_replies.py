"""Replies as workers write them, small enough to be read, and a request on its way through a dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects.dialect import Asking, Headers, Question
from sie_sdk import replies, wire
from sie_sdk.outputs import DenseOutput, SparseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, Timing, Usage

REQUEST_ID = "0123456789abcdef0123456789abcdef"
MODEL = "org/model"

Read = Callable[[bytes, Headers, wire.Limits], Asking]


def asked(read: Read, body: Any, spec: ModelSpec, **headers: str) -> Question:
    """What a body, JSON or what JSON can say, asks of a model; header names with underscores."""
    sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return read(sent, named, wire.DEFAULT_LIMITS).ask(spec)


def dense(*rows: Sequence[float]) -> bytes:
    """The reply to an encode of as many texts."""
    vectors = np.array(rows, "<f4")
    output = DenseOutput(vectors, vectors.shape[1], "float32")
    return replies.encode(MODEL, [None] * len(rows), {"dense": output}, Timing(), Usage(7))


def bits(*rows: Sequence[int]) -> bytes:
    """The same with eight dimensions to a byte."""
    packed = np.array(rows, "u1")
    output = DenseOutput(packed, packed.shape[1] * 8, "ubinary")
    return replies.encode(MODEL, [None] * len(rows), {"dense": output}, Timing(), Usage(7))


def sparse(*rows: tuple[Sequence[int], Sequence[float]]) -> bytes:
    """The same with indices and values."""
    made = [(np.array(indices, "i4"), np.array(values, "<f4")) for indices, values in rows]
    return replies.encode(MODEL, [None] * len(rows), {"sparse": SparseOutput(made, 100, "float32")}, Timing(), Usage(7))


def scores(*values: float) -> bytes:
    """The reply to a score of as many items."""
    return replies.score(MODEL, np.array(values, np.float32), [None] * len(values), None, Timing(), Usage(7))


def labels(*items: dict[str, float]) -> bytes:
    """The reply to an extract of classes from as many items."""
    found = [Extracted([], [Classification(label, score) for label, score in item.items()]) for item in items]
    return replies.extract(MODEL, [None] * len(items), found, Timing(), Usage(7))
