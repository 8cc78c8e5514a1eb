"""The bodies of failed replies: whatever a server or a proxy says, it becomes an error of the tree."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import refusals
from sie_sdk.errors import (
    ForbiddenError,
    ModelNotFoundError,
    NotFoundError,
    SIEError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedReplyError,
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["items", "text", "id", "params", "error", "detail", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "cls", "text"),
    [
        ({"error": {"code": "MODEL_NOT_FOUND", "message": "gone"}}, ModelNotFoundError, "gone"),
        ({"detail": {"code": "MODEL_NOT_FOUND", "message": "gone"}}, ModelNotFoundError, "gone"),
        ({"error": "gone"}, NotFoundError, "gone"),
        ({"detail": ["a", "b"]}, NotFoundError, "a; b"),
        ({"error": {"code": "NEW_CODE", "message": "gone"}}, NotFoundError, "gone"),
    ],
)
def test_every_published_error_form_is_read(body: object, cls: type[SIEError], text: str) -> None:
    error = refusals.read_error(404, {"x-request-id": "r1"}, json.dumps(body).encode())
    assert type(error) is cls
    assert (str(error), error.request_id) == (text, "r1")


def test_an_error_may_be_msgpack_by_its_type() -> None:
    body = msgspec.msgpack.encode({"error": {"code": "QUEUE_FULL", "message": "full"}})
    assert refusals.read_error(503, {"content-type": "application/msgpack"}, body).code == "QUEUE_FULL"


def test_the_code_header_speaks_when_the_body_has_no_code() -> None:
    error = refusals.read_error(404, {"x-sie-error-code": "MODEL_NOT_FOUND"}, b'{"detail": "gone"}')
    assert isinstance(error, ModelNotFoundError)


@pytest.mark.parametrize(("header", "seconds"), [("1.5", 1.5), ("-1", None), ("nan", None), ("inf", None), ("x", None)])
def test_retry_after_is_read_in_seconds(header: str, seconds: float | None) -> None:
    assert refusals.read_error(503, {"retry-after": header}, b'{"error": "later"}').retry_after == seconds


def test_a_proxys_page_is_an_unexpected_reply_with_its_first_bytes() -> None:
    error = refusals.read_error(500, {}, b"<html>Oh no")
    assert isinstance(error, UnexpectedReplyError)
    assert "500" in str(error) and "<html>Oh no" in str(error)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_proxys_not_now_may_be_tried_again(status: int) -> None:
    assert isinstance(refusals.read_error(status, {}, b"no healthy upstream"), UnavailableError)


@pytest.mark.parametrize(("status", "kind"), [(401, UnauthorizedError), (403, ForbiddenError), (404, NotFoundError)])
def test_what_a_gateway_says_in_a_form_of_its_own_is_known_by_its_status(status: int, kind: type[SIEError]) -> None:
    error = refusals.read_error(status, {"content-type": "application/json"}, b'{"detail": "no"}')
    assert (type(error), error.message) == (kind, "no")


@given(st.integers(300, 599), st.binary(max_size=40) | json_values.map(msgspec.json.encode))
def test_any_failed_reply_is_some_error_of_the_tree(status: int, body: bytes) -> None:
    assert isinstance(refusals.read_error(status, {}, body), SIEError)


def test_details_json_has_no_form_for_become_text() -> None:
    body = json.loads(refusals.error_body(SIEError("bad", cause=ValueError("deep"))))
    assert body == {"error": {"code": "INTERNAL_ERROR", "message": "bad", "cause": "deep"}}
