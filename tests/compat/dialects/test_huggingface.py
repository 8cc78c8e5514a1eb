"""``huggingface_hub`` and LangChain's HuggingFaceEndpointEmbeddings, which ask a server of TEI for its one model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.compat.dialects import native
from tests.compat.dialects.conftest import CLASSIFIER
from tests.compat.every_task import DENSE
from tests.compat.venvs import run, venv

pytestmark = [pytest.mark.compat, pytest.mark.weights]

HUB = ("huggingface_hub==2.4.0", "numpy")
LANGCHAIN = ("langchain-huggingface==1.2.3", "langchain-core==1.7.2", "numpy")
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]


@cache
def found(url: str) -> dict[str, Any]:
    """What the client got, once for each server."""
    made: dict[str, Any] = run(venv("huggingface-hub", HUB), "huggingface.py", url, DENSE, CLASSIFIER)
    return made


def test_vectors_are_those_of_our_own_route(url: str) -> None:
    vectors, ours = found(url), native.encode(url, DENSE, TEXTS)
    for way in ("vectors", "at its route", "async"):
        assert native.cosines(vectors[way], ours).min() > 0.9999, way
    assert native.cosines(vectors["of one"], ours[:1]).min() > 0.9999


def test_vectors_come_as_they_were_before_they_were_normalized(url: str) -> None:
    plain = found(url)["not normalized"]
    assert native.cosines(plain, found(url)["vectors"]).min() > 0.9999
    assert (np.linalg.norm(plain, axis=1) > 1.5).all()


def test_similarities_are_the_cosines_of_the_vectors(url: str) -> None:
    ours = native.encode(url, DENSE, TEXTS)
    for way in ("similarity", "at its route too"):
        assert found(url)[way] == pytest.approx((ours @ ours[0]).tolist(), abs=1e-3), way


def test_the_label_is_that_of_our_own_route(url: str) -> None:
    best = native.classes(url, CLASSIFIER, "What is a dog?")[0]
    label, score = found(url)["label"]
    assert label == best["label"]
    assert score == pytest.approx(best["score"], abs=1e-3)


def test_errors_have_teis_form(url: str) -> None:
    errors = found(url)["errors"]
    assert (errors["empty"]["status"], errors["empty"]["body"]["error_type"]) == (400, "Empty")
    assert (errors["no model"]["status"], errors["no model"]["body"]["code"]) == (404, "MODEL_NOT_FOUND")
    assert errors["not named"]["status"] == 400
    assert "X-SIE-Model" in errors["not named"]["body"]["error"]


def test_langchains_endpoint_embeddings_give_the_vectors_of_our_own_route(url: str) -> None:
    python = venv("langchain-huggingface", LANGCHAIN)
    vectors = run(python, "langchain_huggingface_embeddings.py", url, DENSE)
    ours = native.encode(url, DENSE, TEXTS)
    for way in ("documents", "async"):
        assert native.cosines(vectors[way], ours).min() > 0.9999, way
    assert native.cosines([vectors["query"]], ours[:1]).min() > 0.9999
