"""The bodies of the protocol: strict about what they say, precise about what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import wire
from sie_sdk.errors import (
    InputTooLongError,
    InvalidInputError,
    SIEError,
    UnsupportedMediaTypeError,
)
from sie_sdk.types import EncodeParams, EncodeRequest, Item

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["items", "text", "id", "params", "error", "detail", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
items = st.builds(
    Item, text=st.text(), id=st.none() | st.text(), metadata=st.none() | st.dictionaries(st.text(), st.integers(0, 9))
)
requests = st.builds(
    EncodeRequest,
    items=st.lists(items, min_size=1, max_size=5),
    params=st.builds(EncodeParams, instruction=st.none() | st.text()),
)


def parse(body: object, limits: wire.Limits = wire.DEFAULT_LIMITS) -> EncodeRequest:
    return wire.parse_encode(json.dumps(body).encode(), wire.JSON, limits=limits)


def refusal(body: object, limits: wire.Limits = wire.DEFAULT_LIMITS) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        parse(body, limits)
    assert caught.value.hint
    return caught.value


# -- requests ----------------------------------------------------------------------------------------------------------


@given(requests)
def test_a_request_parses_to_what_was_sent_in_either_format(request: EncodeRequest) -> None:
    assert wire.parse_encode(wire.request_body(request), wire.MSGPACK) == request
    assert wire.parse_encode(msgspec.json.encode(request), wire.JSON) == request


@given(st.binary(max_size=60), st.sampled_from([wire.MSGPACK, wire.JSON]))
def test_any_bytes_are_a_request_or_a_typed_error(body: bytes, content_type: str) -> None:
    try:
        wire.parse_encode(body, content_type)
    except SIEError as error:
        assert isinstance(error, InvalidInputError)


@given(json_values)
def test_any_value_is_a_request_or_a_typed_error(value: object) -> None:
    try:
        wire.parse_encode(msgspec.msgpack.encode(value), None)
    except SIEError as error:
        assert isinstance(error, InvalidInputError)


def test_fields_at_their_default_do_not_travel() -> None:
    body = wire.request_body(EncodeRequest([Item(text="a")]))
    assert msgspec.msgpack.decode(body) == {"items": [{"text": "a"}]}


def test_a_body_without_a_type_is_msgpack_and_never_guessed_to_be_json() -> None:
    assert wire.parse_encode(wire.request_body(EncodeRequest([Item(text="a")])), None).items[0].text == "a"
    with pytest.raises(InvalidInputError):
        wire.parse_encode(b'{"items": [{"text": "a"}]}', None)


def test_parameters_of_the_content_type_are_ignored() -> None:
    assert wire.parse_encode(b'{"items": [{"text": "a"}]}', "Application/JSON; charset=utf-8")


def test_the_form_type_that_curl_sends_is_refused_with_the_flag_to_add() -> None:
    with pytest.raises(UnsupportedMediaTypeError, match="-H 'Content-Type: application/json'"):
        wire.parse_encode(b"{}", "application/x-www-form-urlencoded")


def test_an_empty_text_is_content() -> None:
    assert parse({"items": [{"text": ""}]}).items[0].text == ""


def test_unknown_fields_are_ignored() -> None:
    assert parse({"items": [{"text": "a", "audio": 1}], "params": {"new": 1}, "more": []}).items == [Item(text="a")]


@pytest.mark.parametrize(
    ("body", "field", "complaint"),
    [
        ([], None, "expected map"),
        ({}, None, "items"),
        ({"items": {}}, "items", "expected array"),
        ({"items": []}, "items", "empty"),
        ({"items": ["a"]}, "items[0]", "expected map"),
        ({"items": [{"text": "a"}, {"id": "b"}]}, "items[1]", "no content"),
        ({"items": [{"text": None}]}, "items[0]", "no content"),
        ({"items": [{"text": "a"}] * 3 + [{"text": 4}]}, "items[3].text", "expected str"),
        ({"items": [{"text": "a", "id": 7}]}, "items[0].id", "got int"),
        ({"items": [{"text": "a"}], "params": []}, "params", "got array"),
        ({"items": [{"text": "a"}], "params": {"output_types": ["dance"]}}, "params.output_types[0]", "Allowed: dense"),
        ({"items": [{"text": "a"}], "params": {"output_dtype": "int3"}}, "params.output_dtype", "float32, float16"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(body: object, field: str | None, complaint: str) -> None:
    error = refusal(body)
    assert error.field == field
    assert complaint in str(error)


@pytest.mark.parametrize("body", [b"", b"{", b'{"items": [{"text": "\xff"}]}', b"[" * 100_000])
def test_a_body_that_does_not_parse_says_which_format_was_tried(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"application/json|nested|expected map"):
        wire.parse_encode(body, wire.JSON)


def test_too_deep_nesting_is_the_callers_error() -> None:
    body = b'{"items": [{"text": "a", "metadata": {"a":' + b"[" * 100_000
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        wire.parse_encode(body, wire.JSON)


def test_more_items_than_allowed_are_refused_with_the_limit() -> None:
    error = refusal({"items": [{"text": "a"}] * 3}, wire.Limits(max_items=2))
    assert (error.field, error.limit) == ("items", 2)


def test_a_text_is_measured_in_bytes_of_utf8() -> None:
    limits = wire.Limits(max_text_bytes=20)
    assert parse({"items": [{"text": "é" * 10}]}, limits)
    error = refusal({"items": [{"text": "short"}, {"text": "é" * 10 + "x"}]}, limits)
    assert isinstance(error, InputTooLongError)
    assert (error.field, error.limit) == ("items[1].text", 20)


@pytest.mark.parametrize(
    ("accept", "content_type", "expected"),
    [
        (None, None, wire.MSGPACK),
        (None, wire.JSON, wire.JSON),
        ("*/*", wire.JSON, wire.JSON),
        ("*/*", wire.MSGPACK, wire.MSGPACK),
        ("application/json", wire.MSGPACK, wire.JSON),
        ("application/msgpack", wire.JSON, wire.MSGPACK),
        ("text/html, application/json;q=0.9, application/msgpack", None, wire.JSON),
    ],
)
def test_the_reply_has_the_format_accept_names_else_the_requests(
    accept: str | None, content_type: str | None, expected: str
) -> None:
    assert wire.media_type(accept, content_type) == expected
