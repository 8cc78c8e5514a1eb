"""The bodies of the protocol: strict about what they say, precise about what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import wire
from sie_sdk.errors import (
    InputTooLongError,
    InvalidInputError,
    ModelNotFoundError,
    NotFoundError,
    SIEError,
    UnavailableError,
    UnexpectedReplyError,
    UnsupportedMediaTypeError,
)
from sie_sdk.types import EncodeParams, EncodeRequest, Item, JobStatus, Timing, Usage

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


# -- results -----------------------------------------------------------------------------------------------------------


def reply(vectors: Any, ids: list[str | None], dtype: Any = "float32") -> bytes:
    return wire.encode_result("m", ids, vectors, dtype, Timing(queue_ms=1.5, total_ms=2.0), Usage(7))


def test_results_come_back_in_order_with_ids_and_timing() -> None:
    vectors = np.arange(6, dtype="<f4").reshape(2, 3)
    first, second = wire.read_encode_result(reply(vectors, ["a", None]))
    assert first.dense is not None and second.dense is not None
    np.testing.assert_array_equal(np.stack([first.dense, second.dense]), vectors)
    assert (first.id, second.id) == ("a", None)
    assert first.timing == second.timing == Timing(queue_ms=1.5, total_ms=2.0)
    assert not first.dense.flags.writeable


def test_the_reply_has_the_published_shape() -> None:
    body = msgspec.msgpack.decode(reply(np.zeros((1, 2), "<f8"), ["a"], "float16"))
    assert body["model"] == "m"
    assert body["usage"] == {"input_tokens": 7}
    dense = body["items"][0]["dense"]
    assert (dense["dims"], dense["dtype"], dense["values"][b"type"]) == (2, "float16", "<f2")


def test_an_item_without_an_id_gets_none_back() -> None:
    assert "id" not in msgspec.msgpack.decode(reply(np.zeros((1, 2)), [None]))["items"][0]


def test_ids_and_vectors_that_do_not_match_are_a_bug_not_a_reply() -> None:
    with pytest.raises(ValueError, match="zip"):
        reply(np.zeros((2, 2)), ["a"])


def test_an_absent_representation_is_none() -> None:
    (result,) = wire.read_encode_result(msgspec.msgpack.encode({"items": [{"dense": None, "sparse": {}}]}))
    assert result.dense is None


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_truncated_reply_is_unexpected_and_shows_its_first_bytes(cut: int) -> None:
    body = reply(np.zeros((1, 2)), ["a"])[:cut]
    with pytest.raises(UnexpectedReplyError, match=r"empty|it begins b'"):
        wire.read_encode_result(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_results_or_an_unexpected_reply(body: bytes) -> None:
    try:
        wire.read_encode_result(body)
    except SIEError as error:
        assert isinstance(error, UnexpectedReplyError)


def test_json_has_plain_lists_for_arrays() -> None:
    body = json.loads(wire.to_json(reply(np.array([[0.5, -2.0]]), ["a"])))
    assert body["items"] == [{"id": "a", "dense": {"dims": 2, "dtype": "float32", "values": [0.5, -2.0]}}]


def test_a_job_comes_back_as_it_was_written() -> None:
    job = JobStatus("j1", "provisioning", 12.5, "starting a worker")
    assert wire.read_job(wire.job_body(job), "application/json") == job
    assert wire.read_job(msgspec.msgpack.encode({"job": job}), "application/msgpack") == job


def test_a_jobs_body_always_says_its_state() -> None:
    assert json.loads(wire.job_body(JobStatus("j1")))["job"]["state"] == "queued"


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


# -- errors ------------------------------------------------------------------------------------------------------------


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
    error = wire.read_error(404, {"x-request-id": "r1"}, json.dumps(body).encode())
    assert type(error) is cls
    assert (str(error), error.request_id) == (text, "r1")


def test_an_error_may_be_msgpack_by_its_type() -> None:
    body = msgspec.msgpack.encode({"error": {"code": "QUEUE_FULL", "message": "full"}})
    assert wire.read_error(503, {"content-type": "application/msgpack"}, body).code == "QUEUE_FULL"


def test_the_code_header_speaks_when_the_body_has_no_code() -> None:
    error = wire.read_error(404, {"x-sie-error-code": "MODEL_NOT_FOUND"}, b'{"detail": "gone"}')
    assert isinstance(error, ModelNotFoundError)


@pytest.mark.parametrize(("header", "seconds"), [("1.5", 1.5), ("-1", None), ("nan", None), ("inf", None), ("x", None)])
def test_retry_after_is_read_in_seconds(header: str, seconds: float | None) -> None:
    assert wire.read_error(503, {"retry-after": header}, b'{"error": "later"}').retry_after == seconds


def test_a_proxys_page_is_an_unexpected_reply_with_its_first_bytes() -> None:
    error = wire.read_error(502, {}, b"<html>Bad Gateway")
    assert isinstance(error, UnexpectedReplyError)
    assert "502" in str(error) and "<html>Bad Gateway" in str(error)


@pytest.mark.parametrize("status", [429, 503])
def test_a_proxys_not_now_may_be_tried_again(status: int) -> None:
    assert isinstance(wire.read_error(status, {}, b"no healthy upstream"), UnavailableError)


@given(st.integers(300, 599), st.binary(max_size=40) | json_values.map(msgspec.json.encode))
def test_any_failed_reply_is_some_error_of_the_tree(status: int, body: bytes) -> None:
    assert isinstance(wire.read_error(status, {}, body), SIEError)


def test_details_json_has_no_form_for_become_text() -> None:
    body = json.loads(wire.error_body(SIEError("bad", cause=ValueError("deep"))))
    assert body == {"error": {"code": "INTERNAL_ERROR", "message": "bad", "cause": "deep"}}
