"""LlamaIndex's clients of Jina, with nothing changed but the base URL."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from sie_ingress.dialects.ranking import sigmoid
from tests.compat.dialects import native
from tests.compat.dialects.test_cohere import DOCUMENTS, QUERY, TEXTS
from tests.compat.every_task import DENSE, RERANKER
from tests.compat.venvs import run, venv

pytestmark = [pytest.mark.compat, pytest.mark.weights]

JINA = ("llama-index-embeddings-jinaai==0.7.0", "llama-index-postprocessor-jinaai-rerank==0.6.0")


@cache
def found(url: str) -> dict[str, Any]:
    """What the clients got, once for each server."""
    made: dict[str, Any] = run(venv("jina", JINA), "jina_client.py", url, DENSE, RERANKER)
    return made


def test_vectors_are_those_of_our_own_route_and_their_bits(url: str) -> None:
    ours = native.encode(url, DENSE, TEXTS)
    for way in ("documents", "async"):
        assert native.cosines(found(url)[way], ours).min() > 0.9999, way
    assert native.cosines(found(url)["query"], ours[0]).min() > 0.9999
    bits = (np.array(found(url)["documents"][0]) > 0).astype(int).tolist()
    assert found(url)["bits"] == found(url)["signed bits"] == bits


def test_the_best_documents_come_with_the_sigmoid_of_our_own_score(url: str) -> None:
    ours = dict(zip(DOCUMENTS, native.score(url, RERANKER, QUERY, DOCUMENTS), strict=True))
    assert [text for text, _ in found(url)["ranked"]] == [DOCUMENTS[1], DOCUMENTS[2]]
    for text, score in found(url)["ranked"]:
        assert score == pytest.approx(sigmoid(ours[text]), abs=1e-3)


def test_an_error_is_raised_with_our_words(url: str) -> None:
    assert "no model 'no/such'" in found(url)["no model"]
