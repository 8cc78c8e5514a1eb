"""Large requests in parts: split before they are queued. Pure.

A part is small enough for several workers to share a request; the caller sees one request and one answer. Which parts
belong together is the job's record (``sie_broker.jobs``); how their answers become one stands in ``sie_broker.merge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_sdk import outputs, wire
from sie_sdk.outputs import WIRE_DTYPES
from sie_sdk.types import EncodeRequest, Item, OutputDtype, asks_for_muvera

PART_ITEMS = 256
"""At most this many items in a part: at 1024 float32 dimensions a reply of 1 MiB, which needs no claim check."""
PART_BYTES = 1024 * 1024
"""At most this many bytes of text, ids, metadata and vectors in a part, unless a single item has more."""
REPLY_BYTES = 4 * 1024 * 1024
"""At most this many bytes of expected reply in a part, likewise. Only multivectors come near it."""

SPARSE_BYTES = 8 * 1024
"""What is expected of a sparse vector: a thousand non-zero places, more than models of 30,000 dimensions have."""
MUVERA_DIMS = 10_240
"""Dimensions of a fixed dimensional encoding (``options.muvera``) of the default size."""
UNKNOWN_DIMS = 65_536
"""What is expected of one that is not brought to a size (``final_dims: null``)."""


class _Reply(NamedTuple):
    """Bytes that a result is expected to take, at most; a text has no more tokens than characters, and a few."""

    fixed: int = 0
    per_token: int = 0
    shortest: int = 0
    longest: int = 0
    """Tokens."""

    def size(self, item: Item) -> int:
        """Of this item."""
        return self.fixed + self.per_token * max(self.shortest, min(len(item.text or "") + 8, self.longest))

    @property
    def largest(self) -> int:
        """Of any."""
        return self.fixed + self.per_token * max(self.shortest, self.longest)


def split(request: wire.Request, spec: ModelSpec) -> Sequence[wire.Request]:
    """The request in parts, in order; itself alone when it is small enough.

    A score's query is in every part. Items that are known by their place in the request get their id here, because a
    worker counts from the first item of its part.
    """
    if len(request.items) == 1:
        return [request]
    reply = _reply(request, spec) if isinstance(request, EncodeRequest) else _Reply()
    if _fits(request.items, reply):
        return [request]
    chunks = _chunks(request.items, [reply.size(item) for item in request.items])
    if len(chunks) == 1:
        return [request]
    if not isinstance(request, EncodeRequest):
        places = [0, *accumulate(len(chunk) for chunk in chunks)]
        chunks = [_named(chunk, place) for chunk, place in zip(chunks, places, strict=False)]
    return [msgspec.structs.replace(request, items=chunk) for chunk in chunks]


def _fits(items: Sequence[Item], reply: _Reply) -> bool:
    """Whether all is surely one part, at a glance: nearly every request is, and adding up takes five times as long."""
    if len(items) > PART_ITEMS or len(items) * reply.largest > REPLY_BYTES:
        return False
    if [True for item in items if item.metadata or item.multivector is not None]:
        return False
    texts = [item.text or "" for item in items] + [item.id for item in items if item.id]
    characters = sum(map(len, texts))
    return characters * (1 if all(map(str.isascii, texts)) else 4) <= PART_BYTES


def _chunks(items: Sequence[Item], replied: Sequence[int]) -> list[list[Item]]:
    chunks: list[list[Item]] = [[]]
    asked = answered = 0
    for item, reply in zip(items, replied, strict=True):
        cost = _request_bytes(item)
        full = len(chunks[-1]) == PART_ITEMS or asked + cost > PART_BYTES or answered + reply > REPLY_BYTES
        if chunks[-1] and full:
            chunks.append([])
            asked = answered = 0
        chunks[-1].append(item)
        asked, answered = asked + cost, answered + reply
    return chunks


def _request_bytes(item: Item) -> int:
    size = _bytes(item.text or "") + _bytes(item.id or "")
    if item.metadata:
        size += _bytes(str(item.metadata))
    return size if item.multivector is None else size + item.multivector.nbytes


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _reply(request: EncodeRequest, spec: ModelSpec) -> _Reply:
    dtype, tasks = request.params.output_dtype or "float32", spec.tasks
    muvera = (request.params.options or {}).get("muvera")
    fixed = per_token = shortest = 0
    for name in outputs.wanted(request, spec.id, spec.outputs):
        if name == "sparse":
            fixed += SPARSE_BYTES
        elif name == "multivector" and tasks.multivector is not None:
            per_token, shortest = _row_bytes(tasks.multivector.dim, dtype), tasks.multivector.query_length
        elif asks_for_muvera(muvera) and tasks.multivector is not None:
            final = muvera.get("final_dims", MUVERA_DIMS) if isinstance(muvera, dict) else MUVERA_DIMS
            fixed += _row_bytes(final if type(final) is int and final > 0 else UNKNOWN_DIMS, dtype)
        elif tasks.dense is not None:
            fixed += _row_bytes(tasks.dense.dim, dtype)
    return _Reply(fixed, per_token, shortest, spec.max_sequence_length)


def _row_bytes(dims: int, dtype: OutputDtype) -> int:
    return dims // 8 if dtype in ("binary", "ubinary") else dims * WIRE_DTYPES[dtype].itemsize


def _named(items: Iterable[Item], first: int) -> list[Item]:
    return [
        item if item.id is not None else msgspec.structs.replace(item, id=f"item-{place}")
        for place, item in enumerate(items, first)
    ]
