"""Bodies that are not what their head says, or not all there."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from sie_ingress.body import read_body
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError


def request(*messages: dict[str, object], length: str = "") -> Request:
    waiting = [*messages]

    async def receive() -> dict[str, object]:
        return waiting.pop(0)

    headers = [(b"content-length", length.encode("latin-1"))] if length else []
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def chunk(body: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_comes_together_from_its_chunks() -> None:
    asked = request(chunk(b"a", more=True), chunk(b"", more=True), chunk(b"bc", more=True), chunk(b""))
    assert await read_body(asked, 3) == b"abc"


async def test_a_caller_that_hangs_up_in_the_middle_is_no_fault_of_the_server() -> None:
    with pytest.raises(InvalidInputError):
        await read_body(request(chunk(b"a", more=True), {"type": "http.disconnect"}), 10)


@pytest.mark.parametrize("length", ["11", "9" * 18, "9" * 19, "9" * 5000])
async def test_a_declared_length_over_the_limit_is_refused_before_a_byte_is_read(length: str) -> None:
    with pytest.raises(PayloadTooLargeError):
        await read_body(request(length=length), 10)


@pytest.mark.parametrize("length", ["²", "-1", "1e9", "x", "\xff"])
async def test_a_declared_length_that_is_no_number_says_nothing(length: str) -> None:
    assert await read_body(request(chunk(b"abc"), length=length), 10) == b"abc"


async def test_a_body_over_the_limit_is_refused_whatever_it_declared() -> None:
    with pytest.raises(PayloadTooLargeError):
        await read_body(request(chunk(b"abcdef", more=True), chunk(b"ghijkl"), length="3"), 10)
