"""Published sie-sdk: score and extract, their values, and how media are refused by models that read text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.compat.every_task import DENSE, RERANKER, TAGGER
from tests.compat.published.conftest import CLASSIFIER, COLBERT, DRIVEN, Post
from tests.compat.published.remote import Client, array, as_array, binary, call
from tests.golden import golden

pytestmark = DRIVEN

QUERY = {"text": "how many people live in Berlin?", "id": "q"}
PASSAGES = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "", "Berlin is a city."]
TEXT = "Ada Lovelace moved from London to Turin. \U0001f600 Zażółć met Grace Hopper in Paris."
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def items(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


# -- score -------------------------------------------------------------------------------------------------------------


def test_scores_are_the_rerankers_best_first_one_for_each_item(client: Client, ours: Post) -> None:
    result = client("score", RERANKER, QUERY, [{"text": text, "id": f"p{i}"} for i, text in enumerate(PASSAGES)]).result
    body = {"query": {"text": QUERY["text"]}, "items": items(PASSAGES)}
    expected = {f"p{one['index']}": one["score"] for one in ours("score", RERANKER, body)["scores"]}
    assert {one["item_id"]: one["score"] for one in result["scores"]} == pytest.approx(expected, abs=0.1)
    scores = [one["score"] for one in result["scores"]]
    assert scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores))
    assert [one["rank"] for one in result["scores"]] == [0, 1, 2, 3]
    assert (result["model"], result["query_id"], result["scores"][0]["item_id"]) == (RERANKER, "q", "p1")
    assert result["usage"]["pairs"] == result["request"]["usage"]["pairs"] == 4
    assert result["usage"]["input_tokens"] == result["request"]["usage"]["input_tokens"] > 40


def test_scores_equal_those_of_the_reference_library(client: Client) -> None:
    pairs, stored = golden.pairs(), golden.arrays("msmarco-reranker")
    calls = [call("score", RERANKER, {"text": query}, [{"text": text}]) for query, text in pairs]
    told = client.run(*calls).outcomes
    got = [outcome.result["scores"][0]["score"] for outcome in told]
    assert got == pytest.approx(stored["logits"].tolist(), abs=0.2)


def test_items_without_an_id_are_known_by_their_place_also_in_a_list_of_a_thousand(client: Client) -> None:
    words = ("hello", "world", "ship", "lighthouse", "coffee")
    texts = [" ".join(words[(place * 7 + step) % 5] for step in range(place % 4 + 1)) for place in range(1000)]
    result = client("score", RERANKER, {"text": "ship"}, items(texts)).result
    assert {one["item_id"] for one in result["scores"]} == {f"item-{place}" for place in range(1000)}
    assert [one["rank"] for one in result["scores"]] == list(range(1000))


def test_multivectors_of_encode_can_be_scored_without_their_texts(client: Client) -> None:
    query, passages = "how many people live in Berlin?", ["Rome is old.", "Berlin has 3.5 million inhabitants."]
    asked, told, by_text = client.run(
        call("encode", COLBERT, {"text": query}, output_types=["multivector"], is_query=True),
        call("encode", COLBERT, items(passages), output_types=["multivector"]),
        call("score", COLBERT, {"text": query}, items(passages)),
    ).outcomes
    rows = array(asked.result["multivector"])
    of_passages = [array(one["multivector"]) for one in told.result]
    vectors = [{"multivector": as_array(one)} for one in of_passages]
    (by_vector,) = client.run(call("score", COLBERT, {"multivector": as_array(rows)}, vectors)).outcomes
    expected = {f"item-{i}": float((rows @ one.T).max(axis=1).sum()) for i, one in enumerate(of_passages)}
    assert {one["item_id"]: one["score"] for one in by_vector.result["scores"]} == pytest.approx(expected, rel=1e-3)
    assert {one["item_id"]: one["score"] for one in by_text.result["scores"]} == pytest.approx(expected, rel=0.02)
    assert by_vector.result["scores"][0]["item_id"] == "item-1"


# -- extract -----------------------------------------------------------------------------------------------------------


def test_entities_are_spans_of_the_text_with_whole_numbers_at_their_ends(client: Client, ours: Post) -> None:
    (result,) = client("extract", TAGGER, [{"text": TEXT, "id": "x"}]).result
    body = {"items": [{"text": TEXT}]}
    (expected,) = ours("extract", TAGGER, body)["items"]
    assert result["id"] == "x"
    found = [(one["label"], one["start"], one["end"]) for one in result["entities"]]
    assert found == [(one["label"], one["start"], one["end"]) for one in expected["entities"]]
    assert ("PER", 0, 12) in found and ("LOC", 24, 30) in found
    for one in result["entities"]:
        assert type(one["start"]) is int and type(one["end"]) is int
        assert one["text"] == TEXT[one["start"] : one["end"]]
        assert 0 < one["score"] <= 1
    assert (result["relations"], result["classifications"], result["objects"]) == ([], [], [])
    assert result["request"]["usage"]["input_tokens"] > 10


def test_entities_equal_those_of_the_reference_library(client: Client) -> None:
    texts = {name: text for name, text in golden.tagged_texts().items() if name not in ("long", "scripts")}
    results = client("extract", TAGGER, items(list(texts.values())), options={"aggregation_strategy": "simple"}).result
    for name, result in zip(texts, results, strict=True):
        expected = golden.entities("bert-ner")["simple"][name]
        found = [(one["label"], one["start"], one["end"]) for one in result["entities"]]
        assert found == [(one["entity_group"], one["start"], one["end"]) for one in expected], name


def test_labels_and_options_choose_among_the_entities(client: Client) -> None:
    places, sure = client.run(
        call("extract", TAGGER, {"text": TEXT}, labels=["LOC"]),
        call("extract", TAGGER, {"text": TEXT}, options={"threshold": 1.0}),
    ).outcomes
    assert {one["label"] for one in places.result["entities"]} == {"LOC"}
    assert sure.result["entities"] == []


def test_classes_come_likeliest_first_and_sum_to_one(client: Client, ours: Post) -> None:
    result = client("extract", CLASSIFIER, {"text": "hello world"}).result
    (expected,) = ours("extract", CLASSIFIER, {"items": [{"text": "hello world"}]})["items"]
    likely = [(one["label"], one["score"]) for one in result["classifications"]]
    assert [label for label, _ in likely] == [one["label"] for one in expected["classifications"]]
    assert sum(score for _, score in likely) == pytest.approx(1.0, abs=1e-3)
    assert [score for _, score in likely] == sorted((score for _, score in likely), reverse=True)
    assert result["entities"] == []


def test_a_long_list_of_texts_is_extracted_in_order(client: Client) -> None:
    texts = [f"{'Paris' if place % 3 else 'nothing'} {place}" for place in range(300)]
    results = client("extract", TAGGER, [{"text": text, "id": str(i)} for i, text in enumerate(texts)]).result
    assert [result["id"] for result in results] == [str(place) for place in range(300)]
    named = ["Paris" in " ".join(one["text"] for one in result["entities"]) for result in results]
    assert np.mean(np.array(named) == np.array(["Paris" in text for text in texts])) > 0.95


# -- media -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "model", "item"),
    [
        ("encode", DENSE, {"images": [binary(PNG)]}),
        ("extract", TAGGER, {"images": [binary(PNG)]}),
        ("extract", TAGGER, {"audio": {"data": binary(b"RIFF" + bytes(60)), "format": "wav", "sample_rate": 16000}}),
        ("extract", TAGGER, {"document": {"data": binary(b"%PDF-1.7"), "format": "pdf"}}),
    ],
)
def test_media_are_refused_by_a_model_that_reads_text_with_the_fields_name(
    client: Client, method: str, model: str, item: dict[str, Any]
) -> None:
    error = client(method, model, [{"text": "hello"}, item]).error
    assert (error["class"], error["code"], error["status_code"]) == ("RequestError", "INVALID_INPUT", 400)
    assert error["param"] == f"items[1].{next(iter(item))}"
    assert "reads text" in error["message"]
