"""Compressed requests are unpacked within the limit or refused; answers are compressed where that is worth it."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Callable

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from sie_ingress import compression
from sie_ingress.compression import ENCODINGS, SMALLEST_BYTES, Compressed, Encoding, chosen, pack, unpack
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError
from sie_sdk.types import EncodeRequest, ExtractRequest, Item, ScoreRequest
from tests.ingress.conftest import RERANKER, ROUTE, TAGGER, Desk

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKED: dict[Encoding, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
encodings = st.sampled_from(ENCODINGS)


def opened(answer: httpx.Response, body: bytes) -> bytes:
    match answer.headers.get("content-encoding"):
        case "gzip":
            return gzip.decompress(body)
        case "zstd":
            return zstd.decompress(body)
    return body


async def raw(desk: Desk, route: str, body: wire.Request, **headers: str) -> tuple[httpx.Response, bytes]:
    """The answer, and its bytes as they were sent."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = desk.client.build_request(
        "POST", route, content=wire.request_body(body), headers={"Content-Type": wire.MSGPACK} | named
    )
    answer = await desk.client.send(request, stream=True)
    sent = b"".join([chunk async for chunk in answer.aiter_raw()])
    return answer, sent


# -- requests ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=3000), encodings, st.integers(1, 4))
def test_a_body_of_any_frames_is_unpacked_to_what_was_packed(data: bytes, encoding: Encoding, frames: int) -> None:
    assert unpack(PACKED[encoding](data) * frames, encoding, 12_000) == data * frames


@given(st.integers(0, 5000), st.integers(0, 5000), encodings)
def test_never_more_than_the_limit_comes_out(size: int, limit: int, encoding: Encoding) -> None:
    packed = PACKED[encoding](bytes(size))
    if size <= limit:
        assert len(unpack(packed, encoding, limit)) == size
    else:
        with pytest.raises(PayloadTooLargeError) as told:
            unpack(packed, encoding, limit)
        assert told.value.limit == limit


@given(st.binary(min_size=1, max_size=400), encodings, st.data())
def test_whatever_is_cut_or_damaged_is_bad_input(data: bytes, encoding: Encoding, draw: st.DataObject) -> None:
    packed = PACKED[encoding](data)
    cut = packed[: draw.draw(st.integers(1, len(packed) - 1))]
    with pytest.raises(InvalidInputError):
        unpack(cut, encoding, 1000)
    for broken in (b"\x00" + packed, packed + b"\xffrest"):
        with pytest.raises(InvalidInputError):
            unpack(broken, encoding, 1000)


@given(st.binary(max_size=300), encodings)
def test_noise_is_bad_input_and_nothing_else(data: bytes, encoding: Encoding) -> None:
    try:
        assert unpack(data, encoding, 1000) is not None
    except InvalidInputError as error:
        assert error.field == "body"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_refused_without_being_unpacked(encoding: Encoding) -> None:
    bomb = PACKED[encoding](bytes(200_000_000))
    assert len(bomb) < 250_000
    with pytest.raises(PayloadTooLargeError):
        unpack(bomb, encoding, 1_000_000)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_body_of_very_many_empty_frames_is_refused_soon(encoding: Encoding) -> None:
    with pytest.raises(InvalidInputError, match="too many frames"):
        unpack(PACKED[encoding](b"") * 100_000, encoding, 1_000_000)


def test_a_window_that_would_need_much_memory_is_refused() -> None:
    options = {int(zstd.CompressionParameter.window_log): 27, int(zstd.CompressionParameter.compression_level): 1}
    wide = zstd.compress(np.random.default_rng(0).bytes(9_000_000), options=options)
    with pytest.raises(InvalidInputError, match="not valid zstd"):
        unpack(wide, "zstd", 20_000_000)


@pytest.mark.parametrize("name", ["gzip", "GZIP", "x-gzip", "zstd", " zstd "])
async def test_a_packed_request_is_answered_like_a_plain_one(desk: Desk, name: str) -> None:
    body = wire.request_body(EncodeRequest([Item(text="four"), Item(text="a")]))
    packed = PACKED["zstd" if "zstd" in name else "gzip"](body)
    async with desk.worker():
        answer = await desk.client.post(
            ROUTE, content=packed, headers={"Content-Type": wire.MSGPACK, "Content-Encoding": name}
        )
    vectors = results.read_encode(answer.content)
    assert [one.dense.tolist() for one in vectors if one.dense is not None] == [[4, 1], [1, 1]]


async def test_identity_is_a_plain_body(desk: Desk) -> None:
    assert (await desk.encode("a", Content_Encoding="identity")).status_code == 202


@pytest.mark.parametrize("name", ["br", "deflate", "gzip, zstd", "snappy"])
async def test_another_encoding_is_refused_with_those_that_are_read(desk: Desk, name: str) -> None:
    answer = await desk.encode("a", Content_Encoding=name)
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert answer.headers["accept-encoding"] == answer.json()["error"]["limit"] == "zstd, gzip"
    assert answer.json()["error"]["param"] == "Content-Encoding"


async def test_the_limit_of_bodies_is_that_of_what_they_unpack_to(desk: Desk) -> None:
    def packed(letters: int) -> bytes:
        return gzip.compress(msgspec.json.encode({"items": [{"text": "a" * letters}]}))

    headers = {"Content-Type": wire.JSON, "Content-Encoding": "gzip"}
    within = await desk.client.post(ROUTE, content=packed(19_000), headers=headers)
    over = await desk.client.post(ROUTE, content=packed(20_001), headers=headers)
    assert (within.status_code, over.status_code) == (202, 413)
    assert over.json()["error"]["limit"] == 20_000


async def test_pools_and_events_take_packed_bodies_too(desk: Desk) -> None:
    headers = {"Content-Type": "application/cloudevents+json", "Content-Encoding": "gzip"}
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/me",
        "type": "dev.sie.encode.v1",
        "model": desk.registry.specs()[0].id,
    }
    body = gzip.compress(msgspec.json.encode(event | {"data": {"items": [{"text": "a"}]}}))
    assert (await desk.client.post("/v1/events", content=body, headers=headers)).status_code == 202


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("gzip, deflate", "gzip"),
        ("gzip, deflate, zstd", "zstd"),
        ("zstd", "zstd"),
        ("*", "zstd"),
        ("*;q=0.5, zstd;q=0", "gzip"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("br, deflate", None),
        ("identity", None),
        ("", None),
        ("gzip;q=what", None),
        ("GZIP ; Q=0.3", "gzip"),
    ],
)
def test_the_encoding_is_the_one_the_caller_likes_best_of_those_there_are(accept: str, expected: str | None) -> None:
    assert chosen(accept) == expected


@given(st.text(max_size=60))
def test_any_accept_encoding_can_be_read(accept: str) -> None:
    assert chosen(accept) in (None, *ENCODINGS)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_large_json_answer_is_compressed_and_the_same(desk: Desk, encoding: str) -> None:
    items = [Item(text="a" * (place % 50), id=str(place)) for place in range(300)]
    async with desk.worker():
        plain, body = await raw(desk, ROUTE, EncodeRequest(items), Accept=wire.JSON, Accept_Encoding="identity")
        answer, sent = await raw(desk, ROUTE, EncodeRequest(items), Accept=wire.JSON, Accept_Encoding=encoding)
    assert answer.headers["content-encoding"] == encoding
    assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in plain.headers
    assert int(answer.headers["content-length"]) == len(sent) < len(body) / 2
    assert msgspec.json.decode(opened(answer, sent))["items"] == msgspec.json.decode(body)["items"]
    assert answer.headers["x-sie-worker"] and answer.headers["x-request-id"]


async def test_a_small_answer_is_never_compressed(desk: Desk) -> None:
    async with desk.worker():
        answer, _ = await raw(desk, ROUTE, EncodeRequest([Item(text="a")]), Accept=wire.JSON, Accept_Encoding="gzip")
    error, _ = await raw(desk, "/v1/encode/nobody", EncodeRequest([Item(text="a")]), Accept_Encoding="gzip")
    for small in (answer, error):
        assert "content-encoding" not in small.headers and "vary" not in small.headers


async def test_msgpack_of_scores_and_entities_is_compressed_and_numbers_are_not(desk: Desk) -> None:
    texts = [Item(text="Ada Lovelace", id=str(place)) for place in range(400)]
    async with desk.worker():
        scored, of_scores = await raw(
            desk, f"/v1/score/{RERANKER.id}", ScoreRequest(texts[0], texts), Accept_Encoding="gzip, zstd"
        )
        tagged, of_entities = await raw(desk, f"/v1/extract/{TAGGER.id}", ExtractRequest(texts), Accept_Encoding="gzip")
    assert (scored.headers["content-encoding"], tagged.headers["content-encoding"]) == ("zstd", "gzip")
    assert len(results.read_score(opened(scored, of_scores)).scores) == 400
    assert [one.id for one in results.read_extract(opened(tagged, of_entities))] == [item.id for item in texts]


def test_float_vectors_are_sent_as_they_are_and_bits_are_packed() -> None:
    numbers = np.random.default_rng(0).normal(size=SMALLEST_BYTES).astype(np.float32)
    for encoding in ENCODINGS:
        assert pack(numbers.tobytes(), encoding, wire.MSGPACK) is None
        assert pack(numbers.astype(np.float16).tobytes(), encoding, wire.MSGPACK) is None
        assert pack((numbers * 40).astype(np.int8).tobytes(), encoding, wire.MSGPACK) is None
        assert pack(msgspec.json.encode(numbers.tolist()), encoding, wire.JSON) is not None


async def test_an_answer_in_pieces_is_sent_whole_and_as_it_is() -> None:
    piece = b"a" * 2 * SMALLEST_BYTES

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        for more in (True, False):
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    async with httpx.AsyncClient(transport=httpx.ASGITransport(Compressed(app)), base_url="http://ingress") as client:
        answer = await client.get("/", headers={"Accept-Encoding": "gzip"})
    assert answer.content == piece * 2
    assert "content-encoding" not in answer.headers and "content-length" not in answer.headers


async def test_the_catalogue_and_the_document_of_the_api_are_compressed_once_they_are_large(desk: Desk) -> None:
    request = desk.client.build_request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
    answer = await desk.client.send(request)
    assert answer.headers["content-encoding"] == "gzip" and answer.json()["openapi"].startswith("3.1")


async def test_a_large_answer_is_compressed_off_the_event_loop(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def seen(body: bytes, encoding: Encoding, content_type: str) -> bytes | None:
        threads.append(threading.get_ident())
        return pack(body, encoding, content_type)

    monkeypatch.setattr(compression, "pack", seen)
    items = [Item(text="a", id=str(place)) for place in range(300)]
    async with desk.worker():
        for small in (1_000_000, 1000):
            monkeypatch.setattr(compression, "ON_LOOP_BYTES", small)
            await raw(desk, ROUTE, EncodeRequest(items), Accept=wire.JSON, Accept_Encoding="gzip")
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
