"""Megabytes of what becomes objects are refused before they do, wherever they stand; texts and vectors are not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sie_sdk import wire
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


def test_vectors_of_megabytes_are_read_packed_and_as_lists() -> None:
    request = ScoreRequest(Item(text="q"), [Item(multivector=VECTORS)])
    body = b'{"query": {"text": "q"}, "items": [{"multivector": %b}]}' % msgspec.json.encode(VECTORS.tolist())
    for read in (wire.parse_score(wire.request_body(request), wire.MSGPACK), wire.parse_score(body, wire.JSON)):
        found = read.items[0].multivector
        assert found is not None and np.array_equal(found, VECTORS)


def test_a_medium_of_megabytes_is_refused_as_what_it_is() -> None:
    with pytest.raises(InvalidInputError, match="reads text") as refused:
        wire.parse_encode(b'{"items": [{"images": %b}]}' % MANY, wire.JSON)
    assert refused.value.field == "items[0].images"
