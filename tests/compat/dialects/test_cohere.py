"""The official ``cohere`` client, both versions, with nothing changed but the base URL."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import httpx
import numpy as np
import pytest

from sie_ingress.dialects.ranking import sigmoid
from sie_sdk.quantize import quantize
from tests.compat.dialects import native
from tests.compat.every_task import DENSE, RERANKER
from tests.compat.venvs import run, venv

pytestmark = [pytest.mark.compat, pytest.mark.weights]

COHERE = ("cohere==7.3.1",)
QUERY = "how many people live in Berlin?"
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]
DOCUMENTS = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is in Germany."]


@cache
def found(url: str) -> dict[str, Any]:
    """What the client got, once for each server."""
    made: dict[str, Any] = run(venv("cohere", COHERE), "cohere_client.py", url, RERANKER, DENSE)
    return made


def test_documents_come_best_first_with_the_sigmoid_of_our_own_score(url: str) -> None:
    ours = native.score(url, RERANKER, QUERY, DOCUMENTS)
    for way in ("v1", "v2", "async", "v1 objects"):
        results = found(url)[way]
        assert [each["index"] for each in results] == [1, 2, 0], way
        for each in results:
            assert each["score"] == pytest.approx(sigmoid(ours[each["index"]]), abs=1e-3), way


def test_documents_come_back_only_where_they_are_asked_for_and_only_the_best(url: str) -> None:
    results = found(url)
    assert [each["document"] for each in results["v1"]] == [None] * 3
    assert [each["document"] for each in results["v1 with documents"]] == [DOCUMENTS[1], DOCUMENTS[2]]
    assert [each["document"] for each in results["v1 objects"]] == [DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[0]]
    assert [each["index"] for each in results["v2 best"]] == [1]


def test_the_fields_of_objects_are_read_in_the_order_named(url: str) -> None:
    lines = [f"{place}\n{text}" for place, text in enumerate(DOCUMENTS)]
    ours = native.score(url, RERANKER, QUERY, lines)
    for each in found(url)["v1 fields"]:
        assert each["score"] == pytest.approx(sigmoid(ours[each["index"]]), abs=1e-3)


def test_vectors_are_those_of_our_own_route_in_every_number_format(url: str) -> None:
    vectors, ours = found(url)["embedded"], native.encode(url, DENSE, TEXTS)
    types = vectors["types"]
    for way in (vectors["v1"], vectors["v1 typed"], vectors["v2"], types["float"]):
        assert native.cosines(way, ours).min() > 0.9999
    assert vectors["v1 in batches"] == 200
    assert native.cosines(types["int8"], ours).min() > 0.999
    assert types["uint8"] == quantize(np.array(types["float"], np.float32), "uint8").rows.tolist()
    bits = np.packbits(np.array(types["float"]) > 0, axis=1)
    assert types["ubinary"] == bits.tolist()
    assert types["binary"] == (bits.astype(int) - 128).tolist()
    in_base64 = [np.frombuffer(base64.b64decode(each), "<f4") for each in types["base64"]]
    assert (np.array(in_base64) == np.array(types["float"], np.float32)).all()


def test_errors_are_the_clients_own_classes_with_our_codes(url: str) -> None:
    errors = found(url)["errors"]
    assert (errors["no documents"]["class"], errors["no documents"]["body"]["param"]) == (
        "BadRequestError",
        "documents",
    )
    assert (errors["no model"]["class"], errors["no model"]["body"]["code"]) == ("NotFoundError", "MODEL_NOT_FOUND")
    assert errors["another model"]["class"] == "BadRequestError"
    assert "nothing to score with" in errors["another model"]["body"]["message"]


def test_what_jinas_clients_send_is_answered_with_the_documents_and_usage(url: str) -> None:
    body = {"model": RERANKER, "query": QUERY, "documents": DOCUMENTS, "top_n": 2}
    answer = httpx.post(f"{url}/v1/rerank", json=body, timeout=60).json()
    assert [each["document"]["text"] for each in answer["results"]] == [DOCUMENTS[1], DOCUMENTS[2]]
    assert answer["usage"]["total_tokens"] > 0
    assert "detail" in httpx.post(f"{url}/v1/rerank", json=body | {"documents": []}, timeout=60).json()
