"""Cohere's embeddings: requests in, answers out, byte by byte."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_config.model.tasks import Dense, Tasks
from sie_ingress.dialects import cohere_embed
from sie_ingress.dialects.dialect import Question
from sie_sdk.errors import InvalidInputError
from sie_sdk.quantize import quantize
from sie_sdk.types import EncodeParams, EncodeRequest, Item, OutputDtype
from tests.ingress.conftest import SPEC as ANY_SPEC
from tests.ingress.dialects.worker_replies import MODEL, REQUEST_ID, asked, dense

SPEC = msgspec.structs.replace(ANY_SPEC, id=MODEL, tasks=Tasks(dense=Dense(dim=8, dims=(4,))))
BODY = {"model": MODEL, "input_type": "search_document", "texts": ["first", "second"]}
ROW = [0.5, -0.1, 0.25, 0.0, 1.0, -1.0, 0.75, -0.75]


def ask(body: Any, version: int = 2) -> Question:
    return asked(partial(cohere_embed.read, version=version), body, SPEC)


def written(question: Question, *rows: list[float]) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(question.write(dense(*rows), REQUEST_ID))
    return read


def test_a_request_asks_for_float32_whatever_becomes_of_it() -> None:
    wanted = EncodeRequest(
        [Item(text="first"), Item(text="second")],
        EncodeParams(["dense"], output_dtype="float32", options={"is_query": False}),
    )
    assert ask(BODY).request == wanted
    assert ask({**BODY, "embedding_types": ["int8", "ubinary"]}).request == wanted


def test_the_answer_is_coheres_byte_by_byte() -> None:
    assert ask({**BODY, "texts": ["first"]}).write(dense([0.5, -0.1]), REQUEST_ID) == (
        b'{"id":"01234567-89ab-cdef-0123-456789abcdef","response_type":"embeddings_by_type",'
        b'"embeddings":{"float":[[0.5,-0.1]]},"texts":["first"],"meta":{"api_version":{"version":"2"},'
        b'"billed_units":{"input_tokens":7},"tokens":{"input_tokens":7,"output_tokens":0}}}'
    )


def test_version_1_answers_with_plain_lists_unless_types_are_asked_for() -> None:
    plain, typed = written(ask(BODY, 1), ROW, ROW), written(ask({**BODY, "embedding_types": ["float"]}, 1), ROW, ROW)
    assert (plain["response_type"], typed["response_type"]) == ("embeddings_floats", "embeddings_by_type")
    assert plain["embeddings"] == typed["embeddings"]["float"]
    assert np.array(plain["embeddings"], np.float32).tolist() == np.array([ROW, ROW], np.float32).tolist()


@pytest.mark.parametrize(
    ("name", "dtype"), [("float", "float32"), ("int8", "int8"), ("uint8", "uint8"), ("ubinary", "ubinary")]
)
def test_each_type_has_the_numbers_of_our_own_format(name: str, dtype: OutputDtype) -> None:
    found = written(ask({**BODY, "texts": ["a"], "embedding_types": [name]}), ROW)
    ours = quantize(np.array([ROW], np.float32), dtype).rows
    assert np.array(found["embeddings"][name], ours.dtype).tolist() == ours.tolist()


def test_several_types_come_of_one_request_and_bits_are_signed_in_one_and_not_in_the_other() -> None:
    types = ["float", "binary", "ubinary", "base64"]
    found = written(ask({**BODY, "texts": ["a"], "embedding_types": types}), ROW)["embeddings"]
    assert list(found) == types
    assert found["ubinary"] == [[0b10101010]]
    assert found["binary"] == [[0b10101010 - 128]]
    assert np.frombuffer(base64.b64decode(found["base64"][0]), "<f4").tolist() == np.array(ROW, np.float32).tolist()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"input_type": "search_query"}, {"is_query": True}),
        ({"truncate": "END"}, {"is_query": False, "overflow_policy": "truncate_text"}),
        ({"truncate": "NONE"}, {"is_query": False, "overflow_policy": "error"}),
        ({"truncate": "START"}, {"is_query": False, "overflow_policy": "error"}),
        ({"output_dimension": 4}, {"is_query": False, "dimensions": 4}),
        ({"max_tokens": 5}, {"is_query": False, "max_seq_length": 5}),
        ({"max_tokens": 5000, "priority": 1}, {"is_query": False}),
    ],
)
def test_what_a_request_says_of_its_texts_becomes_options(fields: Any, options: Any) -> None:
    request = ask(BODY | fields).request
    assert isinstance(request, EncodeRequest)
    assert request.params.options == options


def test_inputs_in_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request = ask({"model": MODEL, "inputs": [{"content": parts}]}).request
    assert [item.text for item in request.items] == ["one\ntwo"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"texts": []}, "texts"),
        ({"texts": None}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": "a"}, "texts"),
        ({"images": ["data:image/png;base64,..."]}, "images"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "..."}}]}]}, "inputs[0]"),
        ({"embedding_types": ["int4"]}, "embedding_types"),
        ({"input_type": "image"}, "input_type"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"output_dimension": 3}, "output_dimension"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_is_no_request_is_refused_and_the_field_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        ask(BODY | fields)
    assert error.value.field == field
    assert error.value.hint
