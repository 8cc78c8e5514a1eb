"""The bodies of requests: strict about what they say, precise about what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import wire
from sie_sdk.bulk import STRAYS
from sie_sdk.errors import InputTooLongError, InvalidInputError, SIEError, UnsupportedMediaTypeError
from sie_sdk.formats import JSON, MSGPACK
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, Operation, ScoreRequest

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["items", "text", "id", "params", "query", "labels", "multivector", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
metadata = st.none() | st.dictionaries(st.text(), st.integers(0, 9))
items = st.builds(Item, text=st.text(), id=st.none() | st.text(), metadata=metadata)
vectors = st.integers(1, 3).map(lambda tokens: np.arange(tokens * 2, dtype=np.float32).reshape(tokens, 2))
scorable = items | st.builds(Item, multivector=vectors, id=st.none() | st.text())
instructions, many = st.none() | st.text(), st.lists(items, min_size=1, max_size=5)
labels = st.none() | st.lists(st.text(min_size=1).filter(str.strip), unique=True, max_size=3)
schemas = st.none() | st.dictionaries(st.text(), json_values, max_size=3)

PARSE: dict[str, Callable[..., wire.Request]] = {
    "encode": wire.parse_encode,
    "score": wire.parse_score,
    "extract": wire.parse_extract,
}
REQUESTS: dict[str, st.SearchStrategy[wire.Request]] = {
    "encode": st.builds(EncodeRequest, many, st.builds(EncodeParams, instruction=instructions)),
    "score": st.builds(ScoreRequest, scorable, st.lists(scorable, min_size=1, max_size=4), instructions),
    "extract": st.builds(ExtractRequest, many, st.builds(ExtractParams, labels, schemas, instructions)),
}
each = pytest.mark.parametrize("operation", PARSE)


def refusal(body: object, operation: str = "encode", limits: wire.Limits = wire.DEFAULT_LIMITS) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        PARSE[operation](json.dumps(body).encode(), wire.JSON, limits=limits)
    assert caught.value.hint
    return caught.value


def parse(body: object, limits: wire.Limits = wire.DEFAULT_LIMITS) -> EncodeRequest:
    return wire.parse_encode(json.dumps(body).encode(), wire.JSON, limits=limits)


# -- requests ----------------------------------------------------------------------------------------------------------


@each
@given(data=st.data())
def test_a_request_parses_to_what_was_sent_in_either_format(operation: str, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[operation])
    assert PARSE[operation](wire.request_body(request), wire.MSGPACK) == request
    in_json = msgspec.json.encode(request, enc_hook=lambda array: array.tolist())
    assert PARSE[operation](in_json, wire.JSON) == request


@each
@given(body=st.binary(max_size=60), content_type=st.sampled_from([wire.MSGPACK, wire.JSON]))
def test_any_bytes_are_a_request_or_a_typed_error(operation: str, body: bytes, content_type: str) -> None:
    try:
        PARSE[operation](body, content_type)
    except SIEError as error:
        assert isinstance(error, InvalidInputError)


@each
@given(value=json_values)
def test_any_value_is_a_request_or_a_typed_error(operation: str, value: object) -> None:
    try:
        PARSE[operation](msgspec.msgpack.encode(value), None)
    except SIEError as error:
        assert isinstance(error, InvalidInputError)


@pytest.mark.parametrize("query", [None, "a", 7, [{}], {"text": ["images"]}])
def test_a_query_is_nothing_to_operations_that_have_none(query: object) -> None:
    told = {"items": [{"text": "images"}], "query": query}
    assert wire.parse_encode(msgspec.msgpack.encode(told), None).items[0].text == "images"
    with pytest.raises(InvalidInputError) as refused:
        wire.parse_encode(msgspec.json.encode({"items": [{}], "query": query}), wire.JSON)
    assert refused.value.field == "items[0]"


def test_fields_at_their_default_do_not_travel() -> None:
    body = wire.request_body(EncodeRequest([Item(text="a")]))
    assert msgspec.msgpack.decode(body) == {"items": [{"text": "a"}]}


def test_a_body_without_a_type_is_msgpack_and_never_guessed_to_be_json() -> None:
    assert wire.parse_encode(wire.request_body(EncodeRequest([Item(text="a")])), None).items[0].text == "a"
    with pytest.raises(InvalidInputError, match=r"looks like JSON .* has no Content-Type") as refused:
        wire.parse_encode(b'\n{"items": [{"text": "a"}]}', None)
    assert refused.value.field == "Content-Type" and "application/json" in str(refused.value.hint)


def test_parameters_of_the_content_type_are_ignored() -> None:
    assert wire.parse_encode(b'{"items": [{"text": "a"}]}', "Application/JSON; charset=utf-8")


def test_the_form_type_that_curl_sends_is_refused_with_the_flag_to_add() -> None:
    with pytest.raises(UnsupportedMediaTypeError, match="-H 'Content-Type: application/json'"):
        wire.parse_encode(b"{}", "application/x-www-form-urlencoded")


def test_an_empty_text_is_content() -> None:
    assert parse({"items": [{"text": ""}]}).items[0].text == ""


def test_unknown_fields_are_ignored() -> None:
    assert parse({"items": [{"text": "a", "later": 1}], "params": {"new": 1}, "more": []}).items == [Item(text="a")]


@pytest.mark.parametrize(
    ("body", "field", "complaint"),
    [
        ([], "body", "expected map"),
        ({}, "items", "items is missing"),
        ({"items": {}}, "items", "expected array"),
        ({"items": []}, "items", "empty"),
        ({"items": ["a"]}, "items[0]", "expected map"),
        ({"items": [{"text": "a"}, {"id": "b"}]}, "items[1]", "no text"),
        ({"items": [{"text": None}]}, "items[0]", "no text"),
        ({"items": [{"text": "a"}] * 3 + [{"text": 4}]}, "items[3].text", "expected str"),
        ({"items": [{"text": "a", "id": 7}]}, "items[0].id", "got int"),
        ({"items": [{"text": "a"}], "params": []}, "params", "got array"),
        ({"items": [{"text": "a"}], "params": {"output_types": ["dance"]}}, "params.output_types[0]", "Allowed: dense"),
        ({"items": [{"text": "a"}], "params": {"output_dtype": "int3"}}, "params.output_dtype", "float32, float16"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(body: object, field: str, complaint: str) -> None:
    error = refusal(body)
    assert error.field == field
    assert complaint in str(error)


def test_a_key_that_is_no_text_is_told_with_the_field_that_holds_it() -> None:
    with pytest.raises(InvalidInputError, match="a key: expected str, got int") as refused:
        wire.parse_encode(msgspec.msgpack.encode({"items": [{"text": "a", "metadata": {1: 2}}]}), wire.MSGPACK)
    assert refused.value.field == "items[0].metadata"


@pytest.mark.parametrize("body", [b"", b"{", b'{"items": [{"text": "\xff"}]}', b"[" * 100_000])
def test_a_body_that_does_not_parse_says_which_format_was_tried(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"application/json|nested|expected map"):
        wire.parse_encode(body, wire.JSON)


def test_too_deep_nesting_is_the_callers_error() -> None:
    body = b'{"items": [{"text": "a", "metadata": {"a":' + b"[" * 100_000
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        wire.parse_encode(body, wire.JSON)


def test_more_items_than_allowed_are_refused_with_the_limit() -> None:
    error = refusal({"items": [{"text": "a"}] * 3}, limits=wire.Limits(max_items=2))
    assert (error.field, error.limit) == ("items", 2)


def test_a_text_is_measured_in_bytes_of_utf8() -> None:
    limits = wire.Limits(max_text_bytes=20)
    assert parse({"items": [{"text": "é" * 10}]}, limits)
    error = refusal({"items": [{"text": "short"}, {"text": "é" * 10 + "x"}]}, limits=limits)
    assert isinstance(error, InputTooLongError)
    assert (error.field, error.limit) == ("items[1].text", 20)


# -- what an item holds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["images", "audio", "video", "document", "multivector"])
@each
def test_an_item_without_a_text_is_told_which_of_its_fields_cannot_be_read(operation: str, held: str) -> None:
    value: Any = [[1.0]] if held == "multivector" else [{"data": "", "format": "png"}]
    body: dict[str, Any] = {"query": {"text": "q"}, "items": [{"text": "a"}, {"id": "b", held: value}]}
    if operation == "score" and held == "multivector":
        assert wire.parse_score(json.dumps(body).encode(), wire.JSON).items[1].multivector is not None
        return
    error = refusal(body, operation)
    assert error.field == f"items[1].{held}"
    assert "this model reads text" in str(error)


@pytest.mark.parametrize("held", ["images", "audio", "video", "document"])
@pytest.mark.parametrize("media", [wire.JSON, wire.MSGPACK])
@each
def test_media_beside_a_text_are_refused_because_its_vector_would_be_another(
    operation: Operation, media: str, held: str
) -> None:
    write = json.dumps if media == wire.JSON else msgspec.msgpack.encode
    picture = [{"data": "", "format": "png"}]

    def body(*items: dict[str, Any], **query: Any) -> bytes:
        written: str | bytes = write({"query": {"text": "q", **query}, "items": [*items]})
        return written.encode() if isinstance(written, str) else written

    with pytest.raises(InvalidInputError) as caught:
        wire.PARSERS[operation](body({"text": "a"}, {"text": "b", held: picture}), media)
    assert caught.value.field == f"items[1].{held}"
    # Nothing, or a text about one, is not one.
    assert wire.PARSERS[operation](body({"text": f"the {held}", held: None}, {"text": "b", held: []}), media)
    if operation == "score":
        with pytest.raises(InvalidInputError) as caught:
            wire.parse_score(body({"text": "a"}, **{held: picture}), media)
        assert caught.value.field == f"query.{held}"


@pytest.mark.parametrize("media", [wire.JSON, wire.MSGPACK])
@pytest.mark.parametrize(("operation", "stray"), [(each, stray) for each, strays in STRAYS.items() for stray in strays])
def test_what_another_place_is_read_for_is_refused_and_not_passed_over(
    operation: Operation, stray: str, media: str
) -> None:
    write = json.dumps if media == wire.JSON else msgspec.msgpack.encode

    def body(value: object) -> bytes:
        within = {"params": {stray.partition(".")[2]: value}} if "." in stray else {stray: value}
        written: str | bytes = write({"query": {"text": "q"}, "items": [{"text": "a"}], **within})
        return written.encode() if isinstance(written, str) else written

    values: list[object] = [True, {}, ["dense"], ""]
    for value in values:
        with pytest.raises(InvalidInputError) as caught:
            wire.PARSERS[operation](body(value), media)
        assert caught.value.field == stray
        assert STRAYS[operation][stray] in (caught.value.hint or "")
    assert wire.PARSERS[operation](body(None), media)  # nothing is in no place


def test_a_query_without_content_is_named() -> None:
    assert refusal({"query": {"id": "q"}, "items": [{"text": "a"}]}, "score").field == "query"
    assert refusal({"query": {"images": [1]}, "items": [{"text": "a"}]}, "score").field == "query.images"
    assert refusal({"items": [{"text": "a"}]}, "score").hint is not None
    assert refusal({"query": "capital?", "items": [{"text": "a"}]}, "score").field == "query"


def test_a_querys_text_has_the_same_limit_as_an_items() -> None:
    body = {"query": {"text": "x" * 21}, "items": [{"text": "a"}]}
    assert refusal(body, "score", wire.Limits(max_text_bytes=20)).field == "query.text"
    body = {"query": {"text": "a"}, "items": [{"text": "a"}, {"text": "x" * 21}]}
    assert refusal(body, "score", wire.Limits(max_text_bytes=20)).field == "items[1].text"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "shape"),
        ([1.0, 2.0], "shape"),
        ([[1.0], [1.0, 2.0]], "inhomogeneous"),
        ([["a"]], "could not convert"),
        ({"nd": True}, "not an array map"),
        ("abc", "could not convert"),
    ],
)
def test_a_multivector_is_a_matrix_of_floats(value: object, complaint: str) -> None:
    error = refusal({"query": {"multivector": value}, "items": [{"text": "a"}]}, "score")
    assert error.field == "query.multivector"
    assert complaint in str(error)


def test_a_multivector_of_integers_or_of_numbers_that_are_not_finite_is_refused() -> None:
    for array in (np.ones((1, 2), "i4"), np.array([[np.nan]], "f4"), np.zeros((0, 4), "f4")):
        body = wire.request_body(ScoreRequest(Item(text="q"), [Item(text="a"), Item(multivector=array)]))
        with pytest.raises(InvalidInputError) as caught:
            wire.parse_score(body, None)
        assert caught.value.field == "items[1].multivector"


def test_multivectors_of_different_dimensions_are_refused() -> None:
    request = ScoreRequest(Item(multivector=np.ones((2, 4), "f4")), [Item(multivector=np.ones((1, 8), "f4"))])
    with pytest.raises(InvalidInputError, match="4, 8") as caught:
        wire.parse_score(wire.request_body(request), None)
    assert caught.value.field == "items[0].multivector"


def test_what_has_no_form_on_the_wire_is_refused_and_numpys_numbers_have_one() -> None:
    with pytest.raises(InvalidInputError, match="type object does not travel"):
        wire.request_body(EncodeRequest([Item(text="a", metadata={"tags": object()})]))
    body = wire.request_body(EncodeRequest([Item(text="a")], EncodeParams(options={"threshold": np.float32(0.5)})))
    assert wire.parse_encode(body, None).params.options == {"threshold": 0.5}


@pytest.mark.parametrize("packing", [msgspec.json, msgspec.msgpack])
def test_params_that_are_null_are_those_left_out(packing: ModuleType) -> None:
    """A generated client writes null for what it was not given; the protocol's published schema allows it."""
    media = JSON if packing is msgspec.json else MSGPACK
    nothing = {"items": [{"text": "a"}], "params": None}
    body = packing.encode(nothing)
    assert wire.parse_encode(body, media) == EncodeRequest([Item(text="a")])
    assert wire.parse_extract(body, media) == ExtractRequest([Item(text="a")])
    stray = packing.encode(nothing | {"is_query": True})
    with pytest.raises(InvalidInputError) as caught:
        wire.parse_encode(stray, media)
    assert caught.value.field == "is_query"


# -- score and extract -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"])
def test_what_msgpack_cannot_say_is_refused_and_not_a_crash(value: object) -> None:
    with pytest.raises(InvalidInputError):
        wire.request_body(EncodeRequest(items=[Item(text="a", metadata={"n": value})]))


def test_a_number_that_float32_cannot_hold_is_not_finite() -> None:
    for number in ("1e39", "1" + "0" * 400):
        body = f'{{"query": {{"multivector": [[{number}]]}}, "items": [{{"text": "a"}}]}}'.encode()
        with pytest.raises(InvalidInputError, match="finite"):
            wire.parse_score(body, wire.JSON)


def test_what_no_record_keeps_may_be_wrong_too() -> None:
    with pytest.raises(InvalidInputError, match="items\\[0\\] has no text"):
        wire.parse_encode(b'{"items": [{"other": "\xff"}]}', wire.JSON)


def test_more_items_than_can_be_scored_at_once_are_refused_with_the_limit() -> None:
    error = refusal({"query": {"text": "q"}, "items": [{"text": "a"}] * 1001}, "score")
    assert (error.field, error.limit) == ("items", 1000)


@pytest.mark.parametrize(
    ("labels", "field", "complaint"),
    [
        (["a", ""], "params.labels[1]", "empty"),
        (["a", " "], "params.labels[1]", "empty"),
        (["a", "b", "a"], "params.labels[2]", "repeats params.labels[0]"),
        ([str(i) for i in range(1001)], "params.labels", "too many"),
        ([1], "params.labels[0]", "expected str"),
        ("person", "params.labels", "expected array"),
    ],
)
def test_labels_are_distinct_words(labels: object, field: str, complaint: str) -> None:
    error = refusal({"items": [{"text": "a"}], "params": {"labels": labels}}, "extract")
    assert error.field == field
    assert complaint in str(error)


def test_a_schema_that_is_too_deep_or_too_large_is_refused() -> None:
    deep: Any = {}
    for _ in range(130):
        deep = {"a": deep}
    for schema in (deep, {"a": [0] * 100_001}):
        error = refusal({"items": [{"text": "a"}], "params": {"output_schema": schema}}, "extract")
        assert error.field == "params.output_schema"
    fine = {"items": [{"text": "a"}], "params": {"output_schema": {"a": [0] * 99_990}}}
    assert wire.parse_extract(json.dumps(fine).encode(), wire.JSON)


# -- media types -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("text", "says"), [(rb"\ud83d", "half of a surrogate pair"), (rb"\\ud83d", None)])
def test_half_a_surrogate_pair_at_the_end_is_called_that(text: bytes, says: str | None) -> None:
    body = b'{"items":[{"text":"a%b"}]}' % text
    if says is None:
        assert wire.parse_encode(body, wire.JSON).items[0].text == r"a\ud83d"
        return
    with pytest.raises(InvalidInputError, match=says):
        wire.parse_encode(body, wire.JSON)
    with pytest.raises(InvalidInputError, match="truncated"):
        wire.parse_encode(body.replace(text, b"a")[:-3], wire.JSON)
