"""The official ``openai`` client and LangChain's OpenAIEmbeddings, with nothing changed but the base URL."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sie_ingress.dialects.token_ids import vocabulary
from tests.compat.dialects import native
from tests.compat.every_task import DENSE, RANDOM
from tests.compat.venvs import run, venv
from tests.platform import Platform, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.weights]

OPENAI = ("openai==3.54.0",)
LANGCHAIN = ("langchain-openai==1.7.3", "langchain-core==1.7.2", "tiktoken==0.14.0")
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]
CL100K = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
"""What tiktoken calls the file of cl100k_base; it checks what is in it."""


@cache
def found(url: str) -> dict[str, Any]:
    """What the client got, once for each server."""
    made: dict[str, Any] = run(venv("openai", OPENAI), "openai_embeddings.py", url, DENSE, RANDOM)
    return made


def test_vectors_are_those_of_our_own_route_however_they_are_asked_for(url: str) -> None:
    vectors, ours = found(url), native.encode(url, DENSE, TEXTS)
    for way in ("by default", "float", "async", "queries"):
        assert native.cosines(vectors[way], ours).min() > 0.9999, way
    assert native.cosines(vectors["one"], ours[:1]).min() > 0.9999
    for way in ("tokens", "one array"):
        assert native.cosines(vectors[way][:1], ours[:1]).min() > 0.9999, way


def test_base64_and_numbers_are_the_same_vectors_to_the_last_bit(url: str) -> None:
    body = {"model": DENSE, "input": "the same text"}

    def embedding(form: str) -> Any:
        answer = httpx.post(f"{url}/v1/embeddings", json=body | {"encoding_format": form}, timeout=60)
        return answer.json()["data"][0]["embedding"]

    in_base64 = np.frombuffer(base64.b64decode(embedding("base64")), "<f4")
    assert (in_base64 == np.array(embedding("float"), np.float32)).all()


def test_models_are_listed_and_go_by_all_their_names(url: str) -> None:
    assert {DENSE, RANDOM} <= set(found(url)["models"])
    assert found(url)["by other names"] == [384] * 4


def test_shorter_vectors_are_those_of_our_own_route(url: str) -> None:
    ours = native.encode(url, RANDOM, TEXTS, dimensions=8)
    assert ours.shape == (3, 8)
    assert native.cosines(found(url)["shortened"], ours).min() > 0.9999


def test_two_thousand_and_forty_eight_inputs_go_in_one_request_and_usage_counts_tokens(url: str) -> None:
    count, tokens = found(url)["many"]
    assert (count, tokens > 2048 * 3) == (2048, True)
    assert found(url)["usage"] == {"prompt_tokens": 17, "total_tokens": 17}
    assert found(url)["raw"]["x-sie-worker"]


def test_errors_are_the_clients_own_classes_with_our_codes(url: str) -> None:
    errors = found(url)["errors"]
    for name, field in (
        ("empty", "input[0]"),
        ("no texts", "input"),
        ("too many", "input"),
        ("no token", "input[0]"),
        ("dimensions", "dimensions"),
    ):
        error = errors[name]
        assert (error["class"], error["code"], error["param"]) == ("BadRequestError", "INVALID_INPUT", field), name
        assert error["type"] == "invalid_request_error"
    assert "384" in errors["dimensions"]["message"]
    assert (errors["no model"]["class"], errors["no model"]["code"]) == ("NotFoundError", "MODEL_NOT_FOUND")


def test_langchains_token_arrays_give_the_vectors_of_their_texts(url: str, tmp_path: Path) -> None:
    tokens = vocabulary("cl100k_base")._tokens[:100_256]
    table = b"".join(base64.b64encode(token or b"") + b" %d\n" % rank for rank, token in enumerate(tokens))
    (tmp_path / CL100K).write_bytes(table)
    python = venv("langchain-openai", LANGCHAIN)
    script = "langchain_openai_embeddings.py"
    vectors = run(python, script, url, DENSE, TIKTOKEN_CACHE_DIR=str(tmp_path))
    ours = native.encode(url, DENSE, vectors["texts"])
    for way in ("tokens", "strings", "async"):
        assert native.cosines(vectors[way], ours).min() > 0.9999, way
    assert native.cosines([vectors["query"]], ours[:1]).min() > 0.9999


@pytest.mark.parametrize(("held_s", "tries"), [("120", 1), ("1", 20)])
def test_the_first_request_to_a_platform_at_zero_is_answered_held_or_by_the_clients_own_tries_and_computed_once(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_s: str, tries: int
) -> None:
    monkeypatch.setenv("SIE_REQUEST_TIMEOUT_S", held_s)
    platform = Platform(tmp_path / "state")
    platform.up(0, "--models", str(models))
    try:
        assert platform.workers() == []
        found = run(venv("openai", OPENAI), "openai_embeddings.py", platform.url, DENSE, "cold", str(tries))
        assert (found["tries"] == 1) == (tries == 1)
        wait_until(lambda: platform.computed() == len(TEXTS))
        assert native.cosines(found["cold"], native.encode(platform.url, DENSE, TEXTS)).min() > 0.9999
        wait_until(lambda: platform.computed() == 2 * len(TEXTS))
        assert 'code="JOB",operation="embeddings"' not in httpx.get(f"{platform.url}/metrics", timeout=5).text
    finally:
        platform.down()
