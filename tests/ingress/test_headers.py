"""Headers that come several times, and what RFC 7240 lets a caller prefer."""

from __future__ import annotations

import pytest

from sie_ingress import answer
from sie_ingress.headers import by_name, preferences
from sie_sdk import wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeRequest, Item
from tests.ingress.conftest import MODEL, ROUTE, Desk

EVENT = [
    ("ce-specversion", "1.0"),
    ("ce-id", "1"),
    ("ce-source", "s"),
    ("ce-type", "dev.sie.encode.v1"),
    ("ce-model", MODEL),
]


def test_the_values_of_a_header_that_comes_twice_are_one_list() -> None:
    scope = {"headers": [(b"prefer", b"wait=1"), (b"accept", b"*/*"), (b"prefer", b"respond-async")]}
    assert by_name(scope) == {"prefer": "wait=1, respond-async", "accept": "*/*"}


@pytest.mark.parametrize(
    ("prefer", "held"),
    [
        ("wait=10", 10),
        ('wait="10"', 10),
        ("Wait = 10", 10),
        ("wait=10;x=y", 10),
        ("wait=10 ; x", 10),
        ("respond-async, wait=10", 10),
        ('x="a, wait=zz", wait=10', 10),
        (r'x="a\", wait=zz", wait=10', 10),
        ('x="a; b", wait=10', 10),
        ("wait=10, wait=zz", 10),
        ("wait=1000", 100),
        ('x="a, wait=zz"', None),
        ("waiting=zz, ,", None),
        ("", None),
    ],
)
def test_a_wait_is_read_as_rfc_7240_writes_it(prefer: str, held: float | None) -> None:
    assert answer.prefer_wait(prefer, 100) == held


@pytest.mark.parametrize("prefer", ["wait", "wait=", "wait=zz", 'wait="1', "wait=-1", "wait=inf", "wait=nan"])
def test_a_wait_that_is_no_number_is_refused(prefer: str) -> None:
    with pytest.raises(InvalidInputError, match="not a number"):
        answer.prefer_wait(prefer, 100)


@pytest.mark.parametrize("prefer", ["respond-async", "Respond-Async; x=y", 'a="b", respond-async', 'respond-async=""'])
def test_a_job_is_preferred_with_parameters_too(prefer: str) -> None:
    assert answer.prefers_job(prefer)
    assert not answer.prefers_job(f'x="{prefer.replace(chr(34), "")}"')


@pytest.mark.parametrize(
    ("prefer", "honoured"), [("respond-async", "respond-async"), ("respond-async, wait=0", "wait=0")]
)
async def test_the_preference_that_was_honoured_is_told_as_it_was_sent(desk: Desk, prefer: str, honoured: str) -> None:
    assert (await desk.encode("a", Prefer=prefer)).headers["preference-applied"] == honoured


def test_quotes_that_do_not_end_take_no_time() -> None:
    assert len(preferences('"' * 60_000)) == 1
    assert len(preferences('a="' * 20_000 + "," * 20_000)) < 20_000


async def test_every_line_of_a_header_counts(desk: Desk) -> None:
    body = wire.request_body(EncodeRequest([Item(text="abc")]))
    twice = [("Content-Type", wire.MSGPACK), ("Prefer", "wait=0"), ("Prefer", "x=y")]
    answers = [
        await desk.client.post(ROUTE, content=body, headers=twice),
        await desk.client.post("/v1/events", content=body, headers=[*twice, *EVENT, ("Prefer", "reply")]),
    ]
    for queued in answers:
        assert (queued.status_code, queued.headers["preference-applied"]) == (202, "wait=0")
    packed = [("Content-Type", wire.MSGPACK), ("Content-Encoding", "gzip"), ("Content-Encoding", "zstd")]
    refused = await desk.client.post(ROUTE, content=body, headers=packed)
    assert (refused.status_code, refused.json()["error"]["param"]) == (415, "Content-Encoding")
    async with desk.worker():
        done = await desk.client.get(
            answers[0].headers["location"],
            headers=[("Accept", "text/html"), ("Accept", wire.MSGPACK), ("Prefer", "wait=10"), ("Prefer", "x=y")],
        )
    assert (done.status_code, done.headers["content-type"]) == (200, wire.MSGPACK)
