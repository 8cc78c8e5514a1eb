"""Broken requests to a real engine, in ``sie serve``: what it makes of them is an answer or a refusal, no accident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import wire
from tests.e2e import every_task
from tests.e2e.conftest import serving
from tests.fuzz import mutations
from tests.fuzz.conftest import share
from tests.fuzz.mutations import Change, Spoil
from tests.openapi_examples import Sent, examples_of

pytestmark = pytest.mark.e2e

RICH: dict[str, Any] = {
    "/v1/encode/test/bge-m3": {
        "items": [{"text": "four", "id": "x", "metadata": {"k": [1]}}, {"text": "five " * 200}],
        "params": {
            "output_types": ["dense", "sparse", "multivector"],
            "output_dtype": "float16",
            "instruction": "find",
            "options": {"is_query": True, "overflow_policy": "truncate_text"},
        },
    },
    "/v1/encode/test/bge-m3?": {"items": [{"text": "four"}], "params": {"options": {"muvera": {"final_dims": 8}}}},
    "/v1/score/test/bert-reranker": {
        "query": {"text": "which"},
        "items": [{"text": "this"}, {"text": "that " * 200, "id": "b"}],
        "instruction": "rank",
        "options": {"activation": "sigmoid", "overflow_policy": "truncate_text"},
    },
    "/v1/extract/test/bert-ner": {
        "items": [{"text": "Ada lives in London. " * 30}],
        "params": {"labels": ["PER"], "options": {"threshold": 0.1, "aggregation": "simple"}},
    },
    "/v1/extract/test/bert-nli": {"items": [{"text": "Ada"}], "params": {"options": {"multi_label": True}}},
}
"""Beyond the examples: what models read."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = every_task.make(tmp_path_factory.mktemp("fuzzed"))
    with serving("--models", str(folder), SIE_MAX_BODY_BYTES="100000") as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.timeout(0)
def test_what_is_broken_about_a_request_is_told_and_no_accident_of_the_engine(client: httpx.Client) -> None:
    examples = examples_of(client.get("/openapi.json").json())
    bare = Sent("", "POST", "", {}, {}, b"", 200, {})
    asked: list[tuple[Sent, Any]] = [(bare._replace(target=target.rstrip("?")), body) for target, body in RICH.items()]
    asked = asked * 5 + [(sent, sent.value()) for sent in examples if sent.method == "POST" and sent.status < 400]

    @share(0.05)
    @given(st.sampled_from(asked), mutations.changes, mutations.spoils, st.sampled_from((wire.JSON, wire.MSGPACK)))
    def property(what: tuple[Sent, Any], changes: list[Change], spoils: list[Spoil], media: str) -> None:
        sent, body = what
        media = sent.headers.get("Content-Type", media)
        for change in changes:
            body = mutations.mutated(body, change)
        content = mutations.encoded(body, media)
        for spoil in spoils:
            content = mutations.spoilt(content, spoil)
        headers = {**sent.headers, "Content-Type": media}
        answer = client.post(sent.target, content=content, headers=headers, timeout=60)
        assert answer.headers.get("x-sie-error-code") != "INTERNAL_ERROR", answer.text
        assert answer.status_code < 500 or answer.status_code == 501, answer.text

    property()
    assert client.get("/readyz").is_success
