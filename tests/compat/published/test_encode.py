"""Published sie-sdk: encode with every output type and dtype, its values, its order, and what it reads beside them."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sie_config import catalog
from tests.compat.every_task import DENSE, RANDOM
from tests.compat.published.conftest import COLBERT, DRIVEN, TINY, VERSION, Post
from tests.compat.published.remote import Client, array, call
from tests.golden import golden

pytestmark = DRIVEN

TEXTS = ["A cat sits on the mat.", "", "Zażółć gęślą jaźń 東京 😀\x00\u202e", "word " * 700, "A cat sits on the mat."]
CLOSE = 0.02
"""Vectors of length 1, computed in bfloat16 in another batch."""


def vectors(results: list[dict[str, Any]], name: str = "dense") -> npt.NDArray[Any]:
    return np.stack([array(result[name]) for result in results])


def reference(ours: Post, model: str, texts: list[str], name: str = "dense", **params: Any) -> list[dict[str, Any]]:
    body = {"items": [{"text": text} for text in texts], "params": {"output_types": [name], **params}}
    return [item[name] for item in ours("encode", model, body)["items"]]


def items(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def cosines(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    one, other = one.astype(float), other.astype(float)
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines: npt.NDArray[np.float64] = np.sum(one * other, axis=-1) / lengths
    return cosines


def test_vectors_are_those_of_sentence_transformers(client: Client) -> None:
    texts, stored = golden.texts(), golden.arrays("minilm")
    names = [name for name in stored["names"].tolist() if name in texts]
    outcome = client("encode", DENSE, items([texts[name] for name in names]))
    rows = dict(zip(stored["names"].tolist(), stored["vectors"], strict=True))
    assert cosines(vectors(outcome.result), np.stack([rows[name] for name in names])).min() > 0.999


def test_a_single_item_is_one_result_and_a_list_of_one_is_a_list(client: Client) -> None:
    single, listed = client.run(
        call("encode", DENSE, {"text": "hello", "id": "x"}), call("encode", DENSE, [{"text": "hello"}])
    ).outcomes
    assert single.result["id"] == "x"
    assert "id" not in listed.result[0]
    np.testing.assert_allclose(array(single.result["dense"]), array(listed.result[0]["dense"]), atol=CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "binary", "ubinary"])
def test_every_dtype_holds_the_values_of_the_float_vectors(client: Client, ours: Post, dtype: str) -> None:
    outcome = client("encode", DENSE, items(TEXTS), output_dtype=dtype)
    got = vectors(outcome.result)
    kinds = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}
    assert got.dtype.str == kinds.get(dtype, "|u1")
    floats = np.array([row["values"] for row in reference(ours, DENSE, TEXTS)], np.float32)
    if dtype in ("binary", "ubinary"):
        bits = np.unpackbits(got, axis=1, bitorder="big")
        assert np.mean(bits == (floats > 0)) > 0.98
        return
    assert got.shape == floats.shape
    if dtype == "int8":
        assert np.abs(got).max(axis=1).tolist() == [127] * len(TEXTS)
        np.testing.assert_allclose(got / 127 * np.abs(floats).max(axis=1, keepdims=True), floats, atol=CLOSE)
    elif dtype == "uint8":
        assert got.min() == 0 and got.max() == 255
        low, high = floats.min(axis=1, keepdims=True), floats.max(axis=1, keepdims=True)
        np.testing.assert_allclose(got / 255 * (high - low) + low, floats, atol=CLOSE)
    else:
        np.testing.assert_allclose(got.astype(np.float32), floats, atol=CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sparse_vectors_have_the_places_and_weights_of_the_model(client: Client, ours: Post, dtype: str) -> None:
    texts = ["hello world", "query ship"]
    outcome = client("encode", RANDOM, items(texts), output_types=["sparse"], output_dtype=dtype)
    for result, expected in zip(outcome.result, reference(ours, RANDOM, texts, "sparse"), strict=True):
        indices, weights = array(result["sparse"]["indices"]), array(result["sparse"]["values"])
        assert indices.dtype == np.int32 and weights.dtype == np.dtype(dtype) and len(indices) > 0
        wanted = dict(zip(expected["indices"], expected["values"], strict=True))
        got = dict(zip(indices.tolist(), weights.tolist(), strict=True))
        for place in wanted.keys() | got.keys():
            assert got.get(place, 0.0) == pytest.approx(wanted.get(place, 0.0), abs=CLOSE)


def test_multivectors_have_a_row_for_each_token(client: Client, ours: Post) -> None:
    texts = ["hello world", "ship lighthouse coffee"]
    outcome = client("encode", RANDOM, items(texts), output_types=["multivector"])
    for result, expected in zip(outcome.result, reference(ours, RANDOM, texts, "multivector"), strict=True):
        rows = array(result["multivector"])
        assert rows.ndim == 2 and rows.dtype == np.float32
        np.testing.assert_allclose(rows, np.array(expected["values"], np.float32), atol=CLOSE)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "binary", "ubinary"])
def test_every_dtype_of_multivectors_has_the_shape_and_values_of_its_rows(
    client: Client, ours: Post, dtype: str
) -> None:
    (expected,) = reference(ours, COLBERT, ["hello world"], "multivector")
    floats = np.array(expected["values"], np.float32)
    rows = array(
        client("encode", COLBERT, {"text": "hello world"}, output_types=["multivector"], output_dtype=dtype).result[
            "multivector"
        ]
    )
    if dtype in ("binary", "ubinary"):
        assert rows.shape == (len(floats), 96 // 8)
        assert np.mean(np.unpackbits(rows, axis=1) == (floats > 0)) > 0.95
    elif dtype == "float16":
        np.testing.assert_allclose(rows.astype(np.float32), floats, atol=CLOSE)
    elif dtype == "int8":
        np.testing.assert_allclose(rows / 127 * np.abs(floats).max(axis=1, keepdims=True), floats, atol=CLOSE)
    else:
        low, high = floats.min(axis=1, keepdims=True), floats.max(axis=1, keepdims=True)
        np.testing.assert_allclose(rows / 255 * (high - low) + low, floats, atol=CLOSE)


def test_sparse_vectors_come_in_floats_only(client: Client) -> None:
    error = client("encode", RANDOM, {"text": "hello"}, output_types=["sparse"], output_dtype="int8").error
    assert (error["class"], error["code"], error["param"]) == ("RequestError", "INVALID_INPUT", "params.output_dtype")


@pytest.mark.parametrize("is_query", [True, False])
def test_muvera_makes_one_vector_of_the_multivectors(client: Client, ours: Post, is_query: bool) -> None:
    options: dict[str, Any] = {"muvera": {}, "is_query": is_query}
    result = client("encode", COLBERT, {"text": "hello world"}, output_types=["dense"], options=options).result
    (expected,) = reference(ours, COLBERT, ["hello world"], options=options)
    vector = array(result["dense"])
    assert vector.shape == (10_240,)
    assert cosines(vector, np.array(expected["values"], np.float32)) > 0.99


def test_all_three_representations_come_at_once_and_those_that_were_not_asked_for_are_not_there(client: Client) -> None:
    every = ["dense", "sparse", "multivector"]
    at_once, one = client.run(
        call("encode", RANDOM, {"text": "hello world"}, output_types=every),
        call("encode", RANDOM, {"text": "hello world"}, output_types=["sparse"]),
    ).outcomes
    assert set(every) <= at_once.result.keys()
    assert set(every) & one.result.keys() == {"sparse"}


def test_the_options_output_types_go_before_the_argument(client: Client) -> None:
    outcome = client(
        "encode", RANDOM, {"text": "hello"}, output_types=["dense"], options={"output_types": ["multivector"]}
    )
    assert "multivector" in outcome.result and "dense" not in outcome.result


def test_ids_and_order_stand_over_a_list_that_is_split_and_computed_in_parts(client: Client, ours: Post) -> None:
    words = ("hello", "world", "ship", "lighthouse")
    texts = [" ".join(words[(place >> shift) % 4] for shift in (0, 2, 4, 6)) for place in range(600)]
    told = client("encode", TINY, [{"text": text, "id": f"#{place}"} for place, text in enumerate(texts)]).result
    assert [result["id"] for result in told] == [f"#{place}" for place in range(600)]
    expected = np.array([row["values"] for row in reference(ours, TINY, texts)], np.float32)
    assert cosines(vectors(told), expected).min() > 0.999
    assert len({tuple(row) for row in expected.round(3).tolist()}) > 200


def test_a_query_gets_the_models_prompt_by_argument_or_option_and_a_document_does_not(client: Client) -> None:
    text = {"text": "world"}
    plain, argument, option, false, prompted = client.run(
        call("encode", TINY, text),
        call("encode", TINY, text, is_query=True),
        call("encode", TINY, text, options={"is_query": True}),
        call("encode", TINY, text, is_query=False),
        call("encode", TINY, {"text": "hello world"}),
    ).outcomes
    as_query = array(argument.result["dense"])
    np.testing.assert_allclose(array(option.result["dense"]), as_query, atol=CLOSE)
    np.testing.assert_allclose(array(prompted.result["dense"]), as_query, atol=CLOSE)
    np.testing.assert_allclose(array(false.result["dense"]), array(plain.result["dense"]), atol=CLOSE)
    assert cosines(as_query, array(plain.result["dense"])) < 0.999


def test_options_of_the_client_are_overlaid_by_those_of_a_call(client: Client) -> None:
    text = {"text": "world"}
    by_client, by_call = client.run(
        call("encode", TINY, text), call("encode", TINY, text, is_query=False), options={"is_query": True}
    ).outcomes
    query, document = client.run(call("encode", TINY, text, is_query=True), call("encode", TINY, text)).outcomes
    np.testing.assert_allclose(array(by_client.result["dense"]), array(query.result["dense"]), atol=CLOSE)
    np.testing.assert_allclose(array(by_call.result["dense"]), array(document.result["dense"]), atol=CLOSE)


def test_an_instruction_goes_before_the_text(client: Client) -> None:
    text = {"text": "world"}
    instructed, written = client.run(
        call("encode", TINY, text, instruction="hello"), call("encode", TINY, {"text": "world"})
    ).outcomes
    assert cosines(array(instructed.result["dense"]), array(written.result["dense"])) < 0.999


def test_a_text_over_the_models_length_is_cut_unless_it_is_to_be_refused(client: Client) -> None:
    long = {"text": "hello " * 100}
    cut, refused = client.run(
        call("encode", TINY, long), call("encode", TINY, long, options={"overflow_policy": "error"})
    ).outcomes
    assert array(cut.result["dense"]).shape == (32,)
    assert refused.error["class"] == "InputTooLongError"


def test_what_stands_in_headers_and_beside_the_vectors_reaches_the_caller(client: Client) -> None:
    told = client.run(call("encode", DENSE, [{"text": "hello"}, {"text": "world"}]))
    (outcome,) = told.outcomes
    assert told.log == [], "no warning of a version that does not fit"
    assert outcome.retries == 0
    if client.flavour == "sync":  # the other tells neither the revision nor the model
        assert outcome.revision == catalog.load()[DENSE].revision
        assert {result["model"] for result in outcome.result} == {DENSE}
    for result in outcome.result:
        timing = result["timing"]
        assert {"queue_ms", "tokenization_ms", "inference_ms", "postprocessing_ms", "total_ms"} <= timing.keys()
        assert 0 < timing["inference_ms"] <= timing["total_ms"]
        request = result["request"]
        assert request["usage"]["input_tokens"] == 6
        assert len(request["id"]) == 32
    assert VERSION == "0.10.1"


def test_keep_alive_connections_carry_one_call_after_another(client: Client) -> None:
    numbers = count()
    calls = [call("encode", TINY, {"text": "hello", "id": str(next(numbers))}) for _ in range(20)]
    told = client.run(*calls, max_connections=1)
    assert [outcome.result["id"] for outcome in told.outcomes] == [str(place) for place in range(20)]
    assert len({outcome.result["request"]["id"] for outcome in told.outcomes}) == 20
