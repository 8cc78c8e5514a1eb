"""A server that is not ours, or not well: whatever it answers, a client hands out results or raises an `SIEError`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import SIEClient, SIEError, replies, wire
from sie_sdk.outputs import DenseOutput, MultivectorOutput, SparseOutput
from sie_sdk.pools import PoolInfo, PoolSpec
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, Entity, ModelInfo, Timing, Usage
from tests.fuzz import mutations
from tests.fuzz.conftest import share

_MATRIX = np.ones((1, 4), "<f4")
_REPLIES = (
    replies.encode(
        "m",
        ["a"],
        {
            "dense": DenseOutput(_MATRIX, 4, "float32"),
            "sparse": SparseOutput([(np.arange(2, dtype="i4"), np.ones(2, "<f4"))], 9, "float32"),
            "multivector": MultivectorOutput([_MATRIX], 4, "float32"),
        },
        Timing(),
        Usage(1),
    ),
    replies.score("m", np.ones(1, np.float32), ["a"], "q", Timing(), Usage(1)),
    replies.extract(
        "m", ["a"], [Extracted([Entity("a", "b", 1.0, 0, 1)], [Classification("c", 1.0)])], Timing(), Usage(1)
    ),
    msgspec.msgpack.encode({"models": [ModelInfo("m", ["dense"], {"dense": 4})]}),
    msgspec.msgpack.encode(ModelInfo("m")),
    msgspec.msgpack.encode({"job": {"id": "a", "state": "queued", "retry_after_s": 0.0}}),
    msgspec.msgpack.encode({"pools": [PoolInfo(PoolSpec("p"))]}),
    msgspec.msgpack.encode(PoolInfo(PoolSpec("p"))),
    msgspec.msgpack.encode({"error": {"code": "QUEUE_FULL", "message": "m", "param": "x", "retry_after": 0.0}}),
    msgspec.msgpack.encode({"detail": {"code": "MODEL_LOADING", "message": "m"}}),
    msgspec.msgpack.encode({"detail": "words"}),
    msgspec.msgpack.encode({"detail": [{"loc": ["body"], "msg": "m"}]}),
)
VALUES = [msgspec.msgpack.decode(reply) for reply in _REPLIES]
CALLS: list[Callable[[SIEClient], Any]] = [
    lambda client: client.encode("m", ["a"], deadline_s=0.02),
    lambda client: client.encode("m", "a", wait_for_capacity=False, deadline_s=0.02),
    lambda client: client.score("m", "q", ["a"], deadline_s=0.02),
    lambda client: client.extract("m", ["a"], deadline_s=0.02),
    lambda client: client.submit("encode", "m", ["a"], deadline_s=0.02).result(deadline_s=0.02),
    lambda client: client.job("a", "score").status(),
    lambda client: client.list_models(),
    lambda client: client.get_model("m"),
    lambda client: client.list_pools(),
    lambda client: client.get_pool("p"),
    lambda client: client.create_pool("p", {"cpu": 1}),
    lambda client: client.renew_pool("p"),
    lambda client: client.delete_pool("p"),
]
MEDIA = (wire.MSGPACK, wire.MSGPACK, wire.JSON, "application/cloudevents+json", "text/html", "", "a/b; charset=nothing")
HEADERS = {
    "retry-after": ("0", "0.001", "-1", "nan", "inf", "1e999", "Wed, 21 Oct 2026 07:28:00 GMT", "\xff"),
    "location": ("/v1/jobs/a", "", "//evil/x", "http://other/", "/v1/jobs/" + "a" * 9000, "\xff", "../.."),
    "x-sie-error-code": ("QUEUE_FULL", "NOTHING", "\xff"),
    "x-request-id": ("a", "\xff"),
    "x-sie-server-version": ("0.10.1", "x", "", "9" * 99),
    "content-encoding": ("gzip", "zstd", "deflate", "br", "nothing"),
    "set-cookie": ("a=b", "\xff"),
}
heads = st.lists(st.sampled_from([(name, value) for name, values in HEADERS.items() for value in values]), max_size=3)
statuses = st.sampled_from(
    (200, 200, 200, 201, 202, 204, 206, 301, 303, 307, 400, 404, 405, 413, 429, 500, 502, 503, 504, 599)
)


@share(0.1)
@given(
    st.sampled_from(range(len(CALLS))),
    st.sampled_from(VALUES),
    mutations.changes,
    mutations.spoils,
    statuses,
    st.sampled_from(MEDIA),
    heads,
)
def test_only_errors_of_the_tree_come_out_of_a_client(
    call: int, value: Any, changes: Any, spoils: Any, status: int, media: str, head: list[tuple[str, str]]
) -> None:
    for change in changes:
        value = mutations.mutated(value, change)
    body = mutations.encoded(value, media)
    for spoil in spoils:
        body = mutations.spoilt(body, spoil)

    def answer(_: httpx.Request) -> httpx.Response:
        headers = [("content-type", media), *head]
        raw = [(name.encode(), each.encode("latin-1")) for name, each in headers]
        return httpx.Response(status, headers=raw, stream=httpx.ByteStream(body))

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        SIEClient("http://evil", http_client=http) as client,
    ):
        try:
            CALLS[call](client)
        except SIEError as error:
            str(error), pickle.loads(pickle.dumps(error))
