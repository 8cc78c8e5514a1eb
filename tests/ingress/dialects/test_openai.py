"""OpenAI's dialect, and Jina's fields on its route: requests in, answers and errors out, byte by byte."""

from __future__ import annotations

import base64
import tracemalloc
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_config.model.tasks import Dense, Tasks
from sie_ingress.dialects import openai
from sie_ingress.dialects.dialect import Question
from sie_ingress.dialects.token_ids import vocabulary
from sie_sdk import wire
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelNotFoundError, ProvisioningError, SIEError
from sie_sdk.types import EncodeParams, EncodeRequest, Item
from tests.ingress.conftest import SPEC as ANY_SPEC
from tests.ingress.dialects.worker_replies import MODEL, REQUEST_ID, asked, bits, dense

SPEC = msgspec.structs.replace(ANY_SPEC, id=MODEL, tasks=Tasks(dense=Dense(dim=4, dims=(2, 3))))
READ = partial(openai.read, tokenizer="cl100k_base")


def ask(body: Any) -> Question:
    return asked(READ, body, SPEC)


def ask_with(**fields: Any) -> Question:
    return ask({"model": MODEL, "input": "a", **fields})


def refused(body: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as error:
        ask(body)
    return error.value


def params(**params: Any) -> EncodeParams:
    return EncodeParams(output_types=["dense"], **({"output_dtype": "float32"} | params))


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([15339, 1917], ["hello world"]),
        ([[15339], [15339, 1917]], ["hello", "hello world"]),
        ([{"text": "one"}, "two"], ["one", "two"]),
    ],
)
def test_texts_and_token_ids_become_items(given: Any, texts: list[str]) -> None:
    question = ask({"model": MODEL, "input": given})
    assert question.operation == "encode"
    assert question.request == EncodeRequest([Item(text=text) for text in texts], params())


def test_an_answer_in_numbers_is_openais_byte_by_byte() -> None:
    body = ask_with().write(dense([0.5, -0.1], [1e-7, 3]), REQUEST_ID)
    assert body == (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.1]},'
        b'{"object":"embedding","index":1,"embedding":[1e-7,3.0]}],"model":"org/model",'
        b'"usage":{"prompt_tokens":7,"total_tokens":7}}'
    )


def test_an_answer_in_base64_holds_the_little_endian_bytes_of_float32() -> None:
    body = ask_with(encoding_format="base64").write(dense([0.5, -0.1]), REQUEST_ID)
    assert b'"embedding":"AAAAP83MzL0="' in body
    (entry,) = msgspec.json.decode(body)["data"]
    assert np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() == [0.5, float(np.float32(-0.1))]


def test_every_float32_comes_back_from_its_digits() -> None:
    random = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    body = ask_with().write(dense(*random.tolist()), REQUEST_ID)
    read = [entry["embedding"] for entry in msgspec.json.decode(body)["data"]]
    assert (np.array(read, np.float32) == random).all()


def test_shorter_vectors_are_asked_for_where_the_model_was_trained_for_them() -> None:
    assert ask_with(dimensions=4).request == EncodeRequest([Item(text="a")], params(options={"dimensions": 4}))
    assert ask_with(dimensions=3).request == EncodeRequest([Item(text="a")], params(options={"dimensions": 3}))
    error = refused({"model": MODEL, "input": "a", "dimensions": 5})
    assert (error.field, error.limit) == ("dimensions", "2, 3, 4")
    assert "2, 3, 4" in str(error)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"input_type": "query"}, {"is_query": True}),
        ({"input_type": "search_document"}, {"is_query": False}),
        ({"task": "retrieval.query"}, {"is_query": True}),
        ({"task": "text-matching"}, {"is_query": False}),
        ({"truncate": "END", "input_type": "passage"}, {"is_query": False, "overflow_policy": "truncate_text"}),
        ({"truncate": False}, {"overflow_policy": "error"}),
        ({"truncate": True}, {"overflow_policy": "truncate_text"}),
        ({"normalized": False}, {"normalize": False}),
        ({"user": "somebody", "new_field": [1], "late_chunking": False}, None),
    ],
)
def test_what_a_request_says_of_its_texts_becomes_options(fields: Any, options: Any) -> None:
    assert ask_with(**fields).request == EncodeRequest([Item(text="a")], params(options=options))


def test_llamaindexs_word_for_the_type_is_read_too() -> None:
    assert ask_with(encoding_type="ubinary").request == ask_with(embedding_type="ubinary").request
    assert refused({"input": "a", "encoding_type": "int4"}).field == "encoding_type"


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_eight_bits_a_number_are_asked_of_the_worker(kind: str) -> None:
    assert ask_with(embedding_type=kind).request == EncodeRequest([Item(text="a")], params(output_dtype=kind))


def test_jinas_bits_come_signed_and_unsigned() -> None:
    signed, unsigned = ask_with(embedding_type="binary"), ask_with(embedding_type=["ubinary"])
    assert signed.request == unsigned.request == EncodeRequest([Item(text="a")], params(output_dtype="ubinary"))
    assert b'"embedding":[-128,127,0]' in signed.write(bits([0, 255, 128]), REQUEST_ID)
    assert b'"embedding":[0,255,128]' in unsigned.write(bits([0, 255, 128]), REQUEST_ID)


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"", "body", "not valid JSON"),
        (b'{"input": "\xff"}', "body", "not valid JSON"),
        (b"[" * 100_000, "body", "wrong"),
        (b'{"input": "a", "deep": ' + b"[" * 100_000, "body", "nested too deeply"),
        ({"model": MODEL}, "input", "input is missing"),
        ({"input": None}, "input", "expected str | array, got null"),
        ({"input": []}, "input", "cannot be an empty array"),
        ({"input": ""}, "input[0]", "cannot be an empty string"),
        ({"input": ["a", ""]}, "input[1]", "cannot be an empty string"),
        ({"input": [[1], []]}, "input[1]", "cannot be an empty array"),
        ({"input": ["a", 1]}, "input", "mixes texts and token ids"),
        ({"input": [1, [1]]}, "input", "mixes texts and token ids"),
        ({"input": [1.5]}, "input[0]", "got float"),
        ({"input": [-1]}, "input[0]", "no token of cl100k_base"),
        ({"input": [[1, 2, 100256]]}, "input[0][2]", "no token of cl100k_base"),
        ({"input": [10**30]}, "input[0]", "no token of cl100k_base"),
        ({"input": [{"image": "..."}]}, "input[0]", "this model reads text"),
        ({"input": ["a"] * 2049}, "input", "2049 entries"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "not known"),
        ({"input": "a", "embedding_type": ["float", "binary"]}, "embedding_type", "2 types"),
        ({"input": "a", "dimensions": "many"}, "dimensions", "expected int"),
        ({"input": "a", "input_type": "poem"}, "input_type", "not known"),
        ({"input": "a", "task": "poem"}, "task", "not known"),
        ({"input": "a", "truncate": "MIDDLE"}, "truncate", "not known"),
        ({"input": "a", "late_chunking": True}, "late_chunking", "not offered"),
    ],
)
def test_what_is_no_request_is_refused_and_the_field_named(body: Any, field: str | None, says: str) -> None:
    error = refused(body)
    assert error.field == field
    assert says in str(error)
    assert error.hint


def test_a_text_over_the_limit_is_refused_before_anything_is_computed() -> None:
    limits = wire.Limits(max_text_bytes=10)
    with pytest.raises(InputTooLongError) as error:
        READ(b'{"input": ["short", "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"]}', {}, limits).ask(SPEC)
    assert (error.value.field, error.value.limit) == ("input[1]", 10)


def test_token_ids_are_refused_where_the_server_takes_texts() -> None:
    with pytest.raises(InvalidInputError, match="check_embedding_ctx_length"):
        asked(partial(openai.read, tokenizer="off"), {"input": [[1]]}, SPEC)


def test_as_many_token_ids_as_openai_takes_are_taken() -> None:
    assert len(ask({"input": [[1] * 146] * openai.MAX_INPUTS}).request.items) == openai.MAX_INPUTS
    assert len(ask({"input": [1] * 300_000}).request.items) == 1


@pytest.mark.parametrize("shape", ["one", "many"])
def test_token_ids_of_too_much_text_are_refused_before_they_are_joined(shape: str) -> None:
    tokens = vocabulary("cl100k_base")._tokens
    longest = max(range(len(tokens)), key=lambda number: len(tokens[number] or b""))
    ids = [longest] * (openai.MOST_BYTES // 128 + 1)
    tracemalloc.start()
    try:
        with pytest.raises(InputTooLongError) as error:
            ask({"input": ids if shape == "one" else [ids[:1000]] * 600})
        assert tracemalloc.get_traced_memory()[1] < openai.MOST_BYTES // 2
    finally:
        tracemalloc.stop()
    assert (error.value.field, error.value.limit) == ("input", openai.MOST_BYTES)


def test_a_body_of_another_type_is_refused() -> None:
    with pytest.raises(SIEError) as error:
        asked(READ, {"input": "a"}, SPEC, content_type="application/x-www-form-urlencoded")
    assert error.value.code == "UNSUPPORTED_MEDIA_TYPE"
    assert asked(READ, {"input": "a"}, SPEC, content_type="application/json; charset=utf-8")


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (InvalidInputError("Wrong.", field="items[3].text"), 400, "invalid_request_error", "input[3]"),
        (InvalidInputError("Wrong.", field="params.options.dimensions"), 400, "invalid_request_error", "dimensions"),
        (InvalidInputError("It cannot.", field="route"), 400, "invalid_request_error", "model"),
        (ModelNotFoundError("None.", field="model", nearest=["org/m"]), 404, "invalid_request_error", "model"),
        (ProvisioningError("Not yet.", retry_after=3.0), 503, "server_error", None),
        (SIEError("Broken."), 500, "server_error", None),
    ],
)
def test_errors_have_openais_form_and_our_code(error: SIEError, status: int, kind: str, param: str | None) -> None:
    message, code = str(error), error.code
    refusal = openai.refuse(error)
    said = msgspec.json.decode(refusal.body)
    assert refusal.status == status
    assert (said["error"]["type"], said["error"]["param"], said["error"]["code"]) == (kind, param, code)
    assert said["error"]["message"] == said["detail"] == message


def test_an_error_of_an_empty_text_is_this_byte_by_byte() -> None:
    assert openai.refuse(refused({"input": ""})).body == (
        b'{"error":{"message":"input[0] cannot be an empty string. Send at least one character or entry.",'
        b'"type":"invalid_request_error","param":"input[0]","code":"INVALID_INPUT",'
        b'"hint":"Send at least one character or entry.","reason":"empty"},'
        b'"detail":"input[0] cannot be an empty string. Send at least one character or entry."}'
    )
