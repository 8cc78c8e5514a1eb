"""The three operations over HTTP: what each answers, what is refused before it is queued, and what the headers say."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from sie_sdk import results, wire
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractRequest, Item, ScoreRequest
from tests.ingress.conftest import EVERYTHING, MODEL, RERANKER, TAGGER, ZERO_SHOT, Desk

PACKED = {"Content-Type": wire.MSGPACK}
SCORE, EXTRACT, ENCODE = f"/v1/score/{RERANKER.id}", f"/v1/extract/{TAGGER.id}", f"/v1/encode/{EVERYTHING.id}"
ITEMS = [{"text": "four"}, {"text": "a", "id": "x"}]


async def test_every_output_is_answered_in_either_format(desk: Desk) -> None:
    body = {"items": ITEMS, "params": {"output_types": ["dense", "sparse", "multivector"]}}
    request = EncodeRequest([Item(text="four")], EncodeParams(output_types=["sparse", "multivector"]))
    async with desk.worker():
        in_json = await desk.post(ENCODE, body)
        packed = await desk.client.post(ENCODE, content=wire.request_body(request), headers=PACKED)
    first, second = in_json.json()["items"]
    assert first["dense"] == {"dims": 2, "dtype": "float32", "values": [4.0, 1.0]}
    assert first["sparse"] == {"dims": 100, "dtype": "float32", "indices": [0, 1, 2, 3], "values": [1.0] * 4}
    assert first["multivector"]["values"] == [[1.0] * 4] * 4
    assert second["id"] == "x"
    (result,) = results.read_encode(packed.content)
    assert result.dense is None and result.sparse is not None and result.multivector is not None
    assert (result.sparse.indices.tolist(), result.multivector.shape) == ([0, 1, 2, 3], (4, 4))


async def test_items_are_scored_in_either_format(desk: Desk) -> None:
    request = ScoreRequest(Item(text="q", id="Q"), [Item(text="a"), Item(text="four", id="x")])
    async with desk.worker():
        packed = await desk.client.post(SCORE, content=wire.request_body(request), headers=PACKED)
        in_json = await desk.post(SCORE, {"query": {"text": "q"}, "items": ITEMS})
    result = results.read_score(packed.content)
    assert (result.model, result.query_id) == (RERANKER.id, "Q")
    assert [(entry.item_id, entry.score, entry.rank, entry.index) for entry in result.scores] == [
        ("x", 3.0, 0, 1),
        ("item-0", 0.0, 1, 0),
    ]
    assert in_json.json()["scores"] == [
        {"item_id": "item-0", "score": 3.0, "rank": 0, "index": 0},
        {"item_id": "x", "score": 0.0, "rank": 1, "index": 1},
    ]
    assert packed.headers["x-sie-units-pairs"] == "2"


async def test_vectors_are_scored_without_texts(desk: Desk) -> None:
    ones = np.ones((3, 4), np.float32)
    request = ScoreRequest(Item(multivector=ones), [Item(multivector=ones[:1]), Item(multivector=ones)])
    async with desk.worker():
        packed = await desk.client.post(
            f"/v1/score/{EVERYTHING.id}", content=wire.request_body(request), headers=PACKED
        )
        body = {"query": {"multivector": ones.tolist()}, "items": [{"multivector": ones.tolist()}]}
        in_json = await desk.post(f"/v1/score/{EVERYTHING.id}", body)
    assert [entry.score for entry in results.read_score(packed.content).scores] == [12.0, 4.0]
    assert in_json.json()["scores"][0]["score"] == 12.0


async def test_entities_are_extracted_in_either_format(desk: Desk) -> None:
    async with desk.worker():
        packed = await desk.client.post(
            EXTRACT, content=wire.request_body(ExtractRequest([Item(text="Ada")])), headers=PACKED
        )
        in_json = await desk.post(EXTRACT, {"items": ITEMS, "params": {"labels": ["person"]}})
    (result,) = results.read_extract(packed.content)
    assert [(entity.text, entity.start, entity.end) for entity in result.entities] == [("Ada", 0, 3)]
    first, second = in_json.json()["items"]
    assert first["entities"] == [{"text": "four", "label": "person", "score": 1.0, "start": 0, "end": 4}]
    assert first["classifications"] == [{"label": "person", "score": 0.5}]
    assert (first["id"], second["id"], first["relations"], first["data"]) == ("item-0", "x", [], {})


async def test_a_cold_score_is_queued_and_answered_later(desk: Desk) -> None:
    cold = await desk.post(SCORE, {"query": {"text": "q"}, "items": ITEMS})
    assert cold.status_code == 202
    async with desk.worker():
        done = await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
    assert len(done.json()["scores"]) == 2


async def test_one_body_under_one_key_on_two_routes_is_two_requests(desk: Desk) -> None:
    desk.registry.put(
        msgspec.structs.replace(TAGGER, tasks=msgspec.structs.replace(TAGGER.tasks, dense=EVERYTHING.tasks.dense))
    )
    async with desk.worker():
        first = await desk.post(EXTRACT, {"items": ITEMS}, Idempotency_Key="k")
        second = await desk.post(f"/v1/encode/{TAGGER.id}", {"items": ITEMS}, Idempotency_Key="k")
    assert first.status_code == 200
    assert second.json()["error"]["code"] == "IDEMPOTENCY_MISMATCH"


# -- what is refused before it is queued -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body", "field", "hint"),
    [
        (f"/v1/encode/{RERANKER.id}", {"items": ITEMS}, "route", f"score with POST /v1/score/{RERANKER.id}"),
        (f"/v1/score/{MODEL}", {"query": {"text": "q"}, "items": ITEMS}, "route", f"POST /v1/encode/{MODEL}"),
        (f"/v1/extract/{EVERYTHING.id}", {"items": ITEMS}, "route", "dense, sparse, multivector with POST /v1/encode/"),
        (f"/v1/encode/{TAGGER.id}", {"items": ITEMS}, "route", f"json with POST /v1/extract/{TAGGER.id}"),
        (
            f"/v1/encode/{MODEL}",
            {"items": ITEMS, "params": {"output_types": ["sparse"]}},
            "params.output_types",
            "dense",
        ),
        (
            ENCODE,
            {"items": ITEMS, "params": {"output_types": ["sparse"], "output_dtype": "int8"}},
            "params.output_dtype",
            "float16",
        ),
        (SCORE, {"query": {"multivector": [[1.0]]}, "items": ITEMS}, "query.multivector", "MaxSim"),
        (SCORE, {"query": {"text": "q"}, "items": [{"multivector": [[1.0]]}]}, "items[0].multivector", "send texts"),
        (
            f"/v1/score/{EVERYTHING.id}",
            {"query": {"text": "q"}, "items": [{"multivector": [[1.0]]}]},
            "items[0].multivector",
            "have 4",
        ),
        (SCORE, {"query": {"text": "q"}, "items": []}, "items", "at least one"),
        (SCORE, {"items": ITEMS}, "query", 'looks like {"query"'),
        (SCORE, {"query": {"text": "q"}, "items": ITEMS * 501}, "items", "1000"),
        (EXTRACT, {"items": ITEMS, "params": {"labels": ["a", "a"]}}, "params.labels[1]", "once"),
        (f"/v1/extract/{ZERO_SHOT.id}", {"items": ITEMS}, "params.labels", "Send the labels to try"),
        (f"/v1/extract/{ZERO_SHOT.id}", {"items": ITEMS, "params": {"labels": []}}, "params.labels", "to try"),
        (EXTRACT, {"items": [{"text": "a"}, {"images": [{"data": ""}]}]}, "items[1].images", "text"),
    ],
)
async def test_what_can_never_succeed_is_refused_with_the_field_and_the_way_out(
    desk: Desk, route: str, body: dict[str, Any], field: str, hint: str
) -> None:
    answer = await desk.post(route, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == answer.headers["x-sie-error-code"] == "INVALID_INPUT"
    assert error["param"] == field
    assert hint in error["hint"]
    assert await desk.broker.backlog() == {}


# -- headers -----------------------------------------------------------------------------------------------------------


async def test_an_answer_says_how_long_each_stage_took_and_what_it_cost(desk: Desk) -> None:
    async with desk.worker():
        answer = await desk.post(ENCODE, {"items": ITEMS}, X_Request_ID="550e8400-e29b-41d4-a716-446655440000")
    expected = {
        "x-queue-time": "1.500",
        "x-tokenization-time": "0.250",
        "x-batch-wait-time": "0.125",
        "x-inference-time": "3.000",
        "x-postprocessing-time": "0.500",
        "x-total-time": "5.375",
        "x-sie-units-input-tokens": "1",
        "x-sie-model-revision": "7",
        "x-request-id": "550e8400-e29b-41d4-a716-446655440000",
        "x-sie-request-id": "550e8400-e29b-41d4-a716-446655440000",
    }
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert "x-sie-units-pairs" not in answer.headers


async def test_the_answer_of_a_job_has_the_same_headers(desk: Desk) -> None:
    cold = await desk.post(ENCODE, {"items": ITEMS})
    async with desk.worker():
        done = await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
    assert (done.headers["x-inference-time"], done.headers["x-sie-model-revision"]) == ("3.000", "7")
    desk.registry.remove(EVERYTHING.id)
    again = await desk.client.get(cold.headers["location"])
    assert again.status_code == 200
    assert "x-sie-model-revision" not in again.headers


@pytest.mark.parametrize("given", ["a b", "x" * 129, "é", ""])
async def test_a_request_id_that_could_harm_a_log_is_replaced(desk: Desk, given: str) -> None:
    answer = await desk.client.get("/v1/models", headers=[(b"X-Request-ID", given.encode())])
    assert len(answer.headers["x-request-id"]) == 32


async def test_an_answer_to_something_unforeseen_has_an_id_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(desk.registry, "resolve", broken)
    answer = await desk.post(ENCODE, {"items": ITEMS}, X_Request_ID="r1")
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r1")
    assert "secret" not in answer.text
