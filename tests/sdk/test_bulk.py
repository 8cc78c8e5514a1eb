"""Megabytes of what becomes objects are refused before they do, wherever they stand; texts and arrays are not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_sdk import bulk, wire
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError
from sie_sdk.types import EncodeRequest, Item, ScoreRequest

LIMIT = wire.DEFAULT_LIMITS.max_other_bytes
MANY = b"[" + b"{}," * (LIMIT // 3) + b"{}]"
PACKED = b"\xdd" + LIMIT.to_bytes(4, "big") + b"\x80" * LIMIT
VECTORS = np.ones((2000, 1000), np.float32)


@pytest.mark.parametrize(
    "body",
    [
        b'{"items": [{"text": "a", "metadata": {"x": %b}}]}',
        b'{"items": [{"text": "a", "metadata": {"x": %b}, "metadata": {}}]}',
        b'{"items": [{"text": "a", "metadata": {"x": %b}}], "items": [{"text": "a"}]}',
        b'{"items": [{"text": "a"}], "params": {"options": {"x": %b}}}',
        b'{"items": [{"text": "a", "multivector": %b}]}',
        b'{"items": [{"unknown": %b}]}',
        b'{"items": [{"text": "a"}], "unknown": %b}',
    ],
)
def test_megabytes_of_objects_are_refused_in_json(body: bytes) -> None:
    with pytest.raises(PayloadTooLargeError) as refused:
        wire.parse_encode(body % MANY, wire.JSON)
    assert (refused.value.field, refused.value.limit) == ("body", LIMIT)


@pytest.mark.parametrize(
    "item", [b"\x82\xa4text\xa1a\xa8metadata\x81\xa1x", b"\x81\xabmultivector", b"\x81\xabmultivector\x81\xc4\x04data"]
)
def test_megabytes_of_objects_are_refused_in_msgpack(item: bytes) -> None:
    with pytest.raises(PayloadTooLargeError):
        wire.parse_encode(b"\x81\xa5items\x91" + item + PACKED, wire.MSGPACK)


@pytest.mark.parametrize("media", [wire.JSON, wire.MSGPACK])
def test_texts_of_megabytes_are_read_with_their_ids_and_some_metadata(media: wire.MediaType) -> None:
    items = [Item(text="[{}]" * 300, id="i" * 300, metadata={"a": [1, {}]}) for _ in range(4096)]
    request = EncodeRequest(items)
    body = msgspec.json.encode(request) if media == wire.JSON else wire.request_body(request)
    assert len(body) > LIMIT
    assert wire.parse_encode(body, media) == request


def test_packed_vectors_of_megabytes_are_read() -> None:
    request = ScoreRequest(Item(text="q"), [Item(multivector=VECTORS)])
    found = wire.parse_score(wire.request_body(request), wire.MSGPACK).items[0].multivector
    assert found is not None and np.array_equal(found, VECTORS)


@pytest.mark.parametrize("vectors", [[VECTORS], [VECTORS[:500], VECTORS[500:]]])
def test_vectors_of_megabytes_in_json_are_refused_before_they_are_numbers(vectors: list[Any]) -> None:
    items = b",".join(b'{"multivector": %b}' % msgspec.json.encode(each.tolist()) for each in vectors)
    body = b'{"query": {"text": "q"}, "items": [%b]}' % items
    with pytest.raises(PayloadTooLargeError, match="packed vector") as refused:
        peak_of(lambda: wire.parse_score(body, wire.JSON), len(body) // 2 + LIMIT)
    assert (refused.value.field, refused.value.limit) == ("body", LIMIT)
    assert "vectors in msgpack" in str(refused.value.hint)


def test_vectors_in_json_below_that_are_read() -> None:
    vectors = np.linspace(0, 1, 128_000, dtype=np.float32).reshape(1000, 128)
    body = b'{"query": {"text": "q"}, "items": [{"multivector": %b}]}' % msgspec.json.encode(vectors.tolist())
    assert LIMIT // 2 < len(body) < LIMIT
    found = wire.parse_score(body, wire.JSON).items[0].multivector
    assert found is not None and np.array_equal(found, vectors)


def test_a_medium_of_megabytes_is_refused_as_what_it_is() -> None:
    with pytest.raises(InvalidInputError, match="reads text") as refused:
        wire.parse_encode(b'{"items": [{"images": %b}]}' % MANY, wire.JSON)
    assert refused.value.field == "items[0].images"


@pytest.mark.parametrize("parse", [wire.parse_encode, wire.parse_score, wire.parse_extract])
def test_millions_of_items_in_msgpack_are_too_many_before_one_is_made(parse: Any) -> None:
    count = 2 * LIMIT
    body = b"\x81\xa5items\xdd" + count.to_bytes(4, "big") + b"\x80" * count
    with pytest.raises(InvalidInputError, match="items are more than one request may hold") as refused:
        peak_of(lambda: parse(body, wire.MSGPACK), LIMIT)
    most = wire.DEFAULT_LIMITS.max_score_items if parse is wire.parse_score else wire.DEFAULT_LIMITS.max_items
    assert (refused.value.field, refused.value.limit) == ("items", most)


@pytest.mark.parametrize("item", [b"{}", b'""'])
def test_millions_of_items_in_json_are_refused_before_one_is_made(item: bytes) -> None:
    body = b'{"items": [%b]}' % b",".join([item] * LIMIT)
    with pytest.raises(PayloadTooLargeError, match=r"over \d+ texts and maps") as refused:
        peak_of(lambda: wire.parse_encode(body, wire.JSON), 3 * len(body))
    assert refused.value.field == "body"


def test_too_many_items_in_json_are_refused_as_such_before_their_bytes_are_counted() -> None:
    body = b'{"items": [%b]}' % b",".join([b'{"id": 1}'] * (LIMIT // 8))
    with pytest.raises(InvalidInputError) as refused:
        wire.parse_encode(body, wire.JSON)
    assert (refused.value.field, refused.value.limit) == ("items", wire.DEFAULT_LIMITS.max_items)


def test_brackets_and_quotes_in_a_text_are_no_maps_and_texts() -> None:
    text = '{"\\' * (wire.DEFAULT_LIMITS.max_text_bytes // 3)
    body = wire.request_body(EncodeRequest([Item(text=text) for _ in range(4)]))
    as_json = msgspec.json.encode(msgspec.msgpack.decode(body))
    assert as_json.count(b"{") > LIMIT // 2 + 8200
    assert len(wire.parse_encode(as_json, wire.JSON).items) == 4


@pytest.mark.parametrize(("marks", "count"), [((b"{",), 5), ((b"[",), 4), ((b"{", b"["), 6), ((b"{", b"[", b","), 8)])
def test_texts_are_counted_and_marks_outside_of_them(marks: tuple[bytes, ...], count: int) -> None:
    body = rb'{"a\"{\\": ["[[[{{", {}, "\\\"{"]}'
    assert bulk.crowded(body, marks, count - 1)
    assert not bulk.crowded(body, marks, count)


def peak_of(call: Callable[[], object], most: int) -> None:
    """Run it; afterwards Python may not have held more than ``most`` bytes for it at once."""
    tracemalloc.start()
    try:
        call()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most
