"""Requests that were valid once, at every route that takes a body: an answer always comes and tells nothing of ours."""

from __future__ import annotations

import asyncio
import gc
import gzip
import zlib
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import wire
from sie_sdk.refusals import BY_CODE
from tests.fuzz import mutations
from tests.fuzz.conftest import share
from tests.fuzz.exchange import Answer, Request, ask
from tests.fuzz.mutations import Change, Spoil
from tests.ingress.conftest import Desk
from tests.openapi_examples import Sent, examples_of

SECRET = b"secret"
"""In the message of the exception that the stand-in worker raises at the text "crash"."""
REPLAYED = 200
"""Requests that are sent again and again, to see what of them stays in memory."""
GROWTH_BYTES = 24 * 1024 * 1024
MEDIA = (
    wire.JSON,
    wire.MSGPACK,
    "application/x-msgpack; charset=utf-8",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/cloudevents+avro",
    "text/plain",
    "multipart/form-data",
    "",
    "\xff",
    "a" * 5000,
)
HEADERS = {
    "accept": ("*/*", wire.MSGPACK, wire.JSON, "application/cloudevents+json", "\xff\x00", ",,;q="),
    "prefer": ("wait=0", "wait=0.01", "wait=nan", "wait=-1", "wait=1e400", "wait=", "reply", "\xff", "wait=1,wait=2"),
    "idempotency-key": ("", "a", "a" * 5000, "\xff", "0193f0a4-0000-7000-8000-000000000000"),
    "content-length": ("0", "-1", "99999999999999999999", "\xb2", "1e3", "\xff"),
    "content-encoding": ("gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "\xff"),
    "x-sie-priority": ("bulk", "interactive", "urgent", "\xff", ""),
    "x-sie-tenant": ("a", "a" * 129, "\x7f", "", "ä"),
    "x-sie-expires-in": ("1", "0", "nan", "inf", "-1", "1e308", "5e-324", "x", ""),
    "x-sie-pool": ("default", "team-a", "nobodys", "\xff", "a" * 300),
    "x-sie-machine-profile": ("cpu", "team-a/cpu", "/", "//"),
    "x-sie-sdk-version": ("0.10.1", "", "\xff", "9" * 400),
    "x-request-id": ("fine", "not fine", "\xff", "a" * 200),
    "traceparent": ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff", "a" * 5000),
    "authorization": ("Bearer x", "\xff"),
    "ce-specversion": ("1.0", "0.3", "", "%ff"),
    "ce-id": ("", "%", "%00", "a" * 5000, "%F0%9F%99%82"),
    "ce-type": ("dev.sie.encode.v1", "dev.sie..v1", "x"),
    "ce-time": ("2026-01-01T00:00:00Z", "2026-99-99T00:00:00Z", "now"),
    "ce-expirytime": ("2026-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00+23:59", "x"),
    "ce-replyto": ("nats:_INBOX.a", "nats:sie.x", "http://127.0.0.1:1/", "file:///etc/passwd", "\xff"),
    "ce-model": ("org/everything", "", "\x00"),
}
MODELS = (
    "org/everything",
    "org/reranker",
    "org/tagger",
    "org/nli",
    "ORG/Counting-Model",
    "reranker",
    "",
    "/",
    "..",
    "a" * 9000,
)
ODD_MODELS = (
    "\x00",
    "\ufffd",
    "%2F",
    "org/everything:profile",
    "default:/org/everything",
    "x:/y:z",
    "🙂",
    "a/b/c/d",
    "{model}",
)

PACKED: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}

_METADATA = {"text": "four", "id": "x", "metadata": {"k": [1, {"a": "b", "n": 0.5}], "l": None}}
RICH = {
    "/v1/encode/org/everything": {
        "items": [_METADATA, {"text": "five5"}],
        "params": {
            "output_types": ["dense", "sparse", "multivector"],
            "output_dtype": "float32",
            "instruction": "find",
            "options": {"is_query": True, "muvera": {"final_dims": 8}},
        },
    },
    "/v1/score/org/everything": {
        "query": {"multivector": [[1.0, 2, 3, 4]]},
        "items": [{"multivector": [[1, 2, 3, 4], [5, 6, 7, 8]], "id": "a"}, _METADATA],
        "instruction": "rank",
        "options": {"a": 1},
    },
    "/v1/extract/org/nli": {
        "items": [_METADATA],
        "params": {"labels": ["a", "b"], "output_schema": {"a": [{"b": 1}]}, "options": {"threshold": 0.5}},
    },
}
"""Beyond the examples: all a request may hold."""

extra = st.lists(st.sampled_from([(name, value) for name, values in HEADERS.items() for value in values]), max_size=2)
asked = st.tuples(
    st.integers(0, 2**16),
    st.sampled_from(("keep", "keep", "keep", "model")),
    st.sampled_from((*MODELS, *ODD_MODELS)),
    st.sampled_from(("keep", "keep", "keep", "other")),
    st.sampled_from(MEDIA),
)
cut = st.sampled_from(("whole", "whole", "whole", "halves", "bytes", "hang up", "gzip", "deflate"))


def request(
    corpus: Sequence[Sent], chosen: Any, changes: list[Change], spoils: list[Spoil], more: Any, how: str
) -> Request:
    """A request of the corpus, changed."""
    which, path, model, media, other = chosen
    sent = corpus[which % len(corpus)]
    said = {name.lower(): value for name, value in sent.headers.items()}
    value, content_type = sent.value(), said.get("content-type", wire.JSON)
    for change in changes:
        value = mutations.mutated(value, change)
    body = mutations.encoded(value, content_type)
    for spoil in spoils:
        body = mutations.spoilt(body, spoil)
    if media == "other":
        said["content-type"] = other
    said.update(more)
    if how in PACKED:
        body, said["content-encoding"] = PACKED[how](body), how
    target = unquote(sent.target)
    if path == "model" and (parts := target.split("/", 3))[1] == "v1" and len(parts) == 4:
        target = f"/v1/{parts[2]}/{model}"
    headers = tuple((name.encode(), value.encode("latin-1", "replace")) for name, value in said.items())
    return Request(sent.method, target, headers, _chunks(body, how), how == "hang up")


def _chunks(body: bytes, how: str) -> list[bytes]:
    if how == "bytes":
        return [*(body[at : at + 1] for at in range(min(len(body), 64))), body[64:]]
    half = len(body) // 2
    return (
        [body]
        if how == "whole" or how in PACKED
        else [body[:half], b"", body[half:]]
        if how == "halves"
        else [body[:half]]
    )


def wrong_with(request: Request, answer: Answer) -> str:
    """What is wrong with an answer, if anything is."""
    if SECRET in answer.body or any("secret" in value for value in answer.headers.values()):
        return "it tells the text of an exception"
    if answer.status == 0:
        return "" if request.hangs_up else "there is none"
    if answer.status < 500:
        return ""
    code = answer.headers.get("x-sie-error-code", "")
    if code not in BY_CODE:
        return f"{answer.status} without a code of ours: {code!r}"
    if code == "INTERNAL_ERROR" and b"went wrong in the worker" not in answer.body:
        return "an exception of the ingress"
    return ""


def _packed(sent: Sent) -> Sent:
    return sent._replace(headers={"Content-Type": wire.MSGPACK}, content=msgspec.msgpack.encode(sent.value()))


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.fixture
def corpus(desk: Desk, loop: asyncio.Runner) -> list[Sent]:
    """Every example of the document whose route takes a body, or that changes something."""
    document = loop.run(desk.client.get("/openapi.json")).json()
    every = [sent for sent in examples_of(document) if sent.method != "GET" and sent.status < 400]
    bare = Sent("", "POST", "", {}, {"Content-Type": wire.JSON}, b"", 200, {})
    rich = [bare._replace(target=target, content=msgspec.json.encode(body)) for target, body in RICH.items()]
    return [*every, *(rich + [_packed(sent) for sent in rich]) * 4]


@pytest.mark.timeout(0)
def test_whatever_comes_in_is_answered_and_the_next_request_still_works(
    desk: Desk, loop: asyncio.Runner, corpus: list[Sent]
) -> None:
    """Every exception out of the application fails, and so does every answer that does not come."""
    asks: list[Request] = []

    @share(0.7)
    @given(asked, mutations.changes, mutations.spoils, extra, cut)
    def property(chosen: Any, changes: Any, spoils: Any, more: Any, how: str) -> None:
        made = request(corpus, chosen, changes, spoils, more, how)
        answer = loop.run(ask(desk.ingress, made))
        assert not (wrong := wrong_with(made, answer)), f"{wrong}: {answer}"
        asks.append(made)
        if len(asks) % 500 == 0:
            del asks[REPLAYED:], desk.computed[:]
            works(desk, loop)

    property()
    works(desk, loop)
    # Not while the property runs: hypothesis remembers each example.
    grown = [replayed(desk, loop, asks[:REPLAYED]) for _ in range(4)]
    assert grown[-1] - grown[0] < GROWTH_BYTES, grown


def replayed(desk: Desk, loop: asyncio.Runner, asks: list[Request]) -> int:
    """The bytes in memory after a few rounds of the same requests."""
    for made in asks * 2:
        loop.run(ask(desk.ingress, made))
    desk.computed.clear()
    return resident()


def works(desk: Desk, loop: asyncio.Runner) -> None:
    assert loop.run(desk.encode("four")).json()["items"][0]["dense"]["values"] == [4, 1]
