"""Published sie-langchain and sie-llamaindex: all they export, against both servers, with the values of plain HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compat.every_task import DENSE, RANDOM, RERANKER, TAGGER
from tests.compat.published.conftest import CLASSIFIER, DRIVEN, VERSION, Post
from tests.compat.venvs import run, venv
from tests.platform import MODEL

pytestmark = DRIVEN

EXPORTS = {
    "langchain": {"SIEEmbeddings", "SIESparseEncoder", "SIEReranker", "SIEExtractor"},
    "llamaindex": {
        "SIEEmbedding",
        "SIEMultiModalEmbedding",
        "SIESparseEmbeddingFunction",
        "SIENodePostprocessor",
        "SIEExtractorTool",
        "create_sie_extractor_tool",
    },
}
CLOSE = 0.02
TEXTS = {
    name: ["A cat sits on the mat.", second, "Zażółć gęślą jaźń 東京", "A kitten rests.", "Rates rose."] * 8
    for name, second in (("langchain", ""), ("llamaindex", "?"))
}
PASSAGES = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is a city."]
QUERY = "how many people live in Berlin?"
SENTENCE = "Ada Lovelace moved from London to Turin."


@pytest.fixture(scope="module", params=EXPORTS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def told(framework: str, url: str) -> Any:
    """What everything came to."""
    python = venv(f"sie-{framework}", [f"sie-{framework}=={VERSION}"])
    return run(python, f"published_{framework}.py", url, DENSE, RANDOM, RERANKER, TAGGER, CLASSIFIER)


def vectors(ours: Post, model: str, texts: list[str], **params: Any) -> Any:
    body = {"items": [{"text": text} for text in texts], "params": params}
    return [item["dense"]["values"] for item in ours("encode", model, body)["items"]]


def test_nothing_that_is_exported_was_left_out(told: Any, framework: str) -> None:
    assert set(told["exports"]) == EXPORTS[framework]


def test_documents_and_queries_have_the_servers_vectors(told: Any, framework: str, ours: Post) -> None:
    texts = TEXTS[framework]
    expected = vectors(ours, DENSE, texts)
    for got in (told["documents"], told["awaited"]["documents"]):
        np.testing.assert_allclose(got, expected, atol=CLOSE)
    (query,) = vectors(ours, DENSE, ["hello"], options={"is_query": True})
    for got in (told["query"], told["awaited"]["query"]):
        np.testing.assert_allclose(got, query, atol=CLOSE)
    assert told["none"] == []
    assert DENSE == MODEL


def test_dtypes_and_instructions_reach_the_server(told: Any, ours: Post) -> None:
    (floats,) = np.array(vectors(ours, DENSE, ["hello"]))
    assert max(map(abs, told["int8"])) == 127
    np.testing.assert_allclose(np.array(told["int8"]) / 127 * np.abs(floats).max(), floats, atol=CLOSE)
    bits = np.unpackbits(np.array(told["bits"], np.uint8))
    assert np.mean(bits == (floats > 0)) > 0.98
    expected = vectors(ours, RANDOM, ["world"], instruction="ship ")
    np.testing.assert_allclose(told["instructed"], expected, atol=CLOSE)
    assert not np.allclose(told["instructed"], vectors(ours, RANDOM, ["world"]), atol=CLOSE)


def test_a_vector_store_finds_what_is_near(told: Any) -> None:
    assert set(told["nearest"]) == {"A cat sits on the mat.", "A kitten rests."}


def test_sparse_vectors_are_the_servers(told: Any, ours: Post) -> None:
    for got, is_query in zip(told["sparse"], (False, True), strict=True):
        params = {"output_types": ["sparse"], "options": {"is_query": is_query}}
        (item,) = ours("encode", RANDOM, {"items": [{"text": "hello world"}], "params": params})["items"]
        expected = dict(zip(item["sparse"]["indices"], item["sparse"]["values"], strict=True))
        found = dict(zip(got[0]["indices"], got[0]["values"], strict=True))
        assert found == pytest.approx(expected, abs=CLOSE) and found


def test_the_reranker_puts_the_best_first_with_the_models_scores(told: Any, framework: str, ours: Post) -> None:
    body = {"query": {"text": QUERY}, "items": [{"text": text} for text in PASSAGES]}
    expected = [[PASSAGES[one["index"]], one["score"]] for one in ours("score", RERANKER, body)["scores"]]
    best = told["best"]
    if framework == "langchain":
        assert [metadata["at"] for _, metadata in best] == [PASSAGES.index(text) for text, _ in best]
        best = [[text, metadata["relevance_score"]] for text, metadata in best]
    for got, count in ((best, 2), (told["awaited"]["best"], 3)):
        assert [text for text, _ in got] == [text for text, _ in expected[:count]]
        assert [score for _, score in got] == pytest.approx([score for _, score in expected[:count]], abs=0.1)
    assert told["unranked"] == []


def test_the_extractor_tool_finds_the_models_entities(told: Any, ours: Post) -> None:
    body = {"items": [{"text": SENTENCE}], "params": {"labels": ["PER", "LOC"]}}
    (item,) = ours("extract", TAGGER, body)["items"]
    expected = [(one["label"], one["text"], one["start"], one["end"]) for one in item["entities"]]
    assert len(expected) == 3
    for got in (told["found"], told["awaited"]["found"]):
        assert [(one["label"], one["text"], one["start"], one["end"]) for one in got["entities"]] == expected
        assert (got["relations"], got["classifications"], got["objects"]) == ([], [], [])
    assert told["sure"]["entities"] == []


def test_errors_are_the_clients_own(told: Any, framework: str) -> None:
    assert told["no model"] == {"class": "RequestError", "code": "MODEL_NOT_FOUND"}
    assert told["no reranker"] == told["no label"] == {"class": "RequestError", "code": "INVALID_INPUT"}
    if framework == "llamaindex":
        assert told["image"] == {"class": "RequestError", "code": "INVALID_INPUT"}
        assert len(told["multimodal"][0]) == len(told["multimodal"][1]) == 384
