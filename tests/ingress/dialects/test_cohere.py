"""Cohere's and Jina's rerank: requests in, answers and errors out, byte by byte."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import msgspec
import pytest

from sie_config.model.tasks import Multivector, Score, Tasks
from sie_ingress.dialects import cohere
from sie_ingress.dialects.dialect import Question
from sie_ingress.dialects.ranking import sigmoid
from sie_sdk.errors import InvalidInputError, QueueFullError
from sie_sdk.types import Item, ScoreRequest
from tests.ingress.conftest import RERANKER
from tests.ingress.dialects.worker_replies import REQUEST_ID, asked, scores

COLBERT = msgspec.structs.replace(
    RERANKER, tasks=Tasks(multivector=Multivector(dim=4, query_length=32), score=Score(kind="maxsim"))
)
M3 = msgspec.structs.replace(RERANKER, tasks=Tasks(multivector=Multivector(dim=4), score=Score(kind="maxsim")))
BODY = {"model": "org/reranker", "query": "q", "documents": ["first", "second"]}


def ask(body: Any, version: int = 1, spec: Any = RERANKER, **headers: str) -> Question:
    return asked(partial(cohere.read_rerank, version=version), body, spec, **headers)


def written(question: Question, *values: float) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(question.write(scores(*values), REQUEST_ID))
    return read


def test_a_request_becomes_a_score_without_activation_so_that_nothing_is_lost_where_scores_are_close_to_one() -> None:
    question = ask(BODY)
    assert question.operation == "score"
    assert question.request == ScoreRequest(
        Item(text="q"), [Item(text="first"), Item(text="second")], options={"activation": "none"}
    )
    found = written(question, 40.0, 41.0)
    assert [each["index"] for each in found["results"]] == [1, 0]
    assert [each["relevance_score"] for each in found["results"]] == [1.0, 1.0]


def test_the_answer_of_version_2_is_coheres_byte_by_byte() -> None:
    assert ask(BODY, 2).write(scores(-2.0, 0.0), REQUEST_ID) == (
        b'{"id":"01234567-89ab-cdef-0123-456789abcdef","results":[{"index":1,"relevance_score":0.5},'
        b'{"index":0,"relevance_score":0.11920292202211755}],"meta":{"api_version":{"version":"2"},'
        b'"billed_units":{"search_units":1},"tokens":{"input_tokens":7,"output_tokens":0}}}'
    )


def test_the_answer_of_version_1_has_what_jinas_clients_read_too() -> None:
    found = written(ask(BODY), 0.0, -2.0)
    assert found["model"] == "org/model"
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert found["meta"]["api_version"] == {"version": "1"}


@pytest.mark.parametrize(
    ("version", "fields", "headers", "returned"),
    [
        (1, {}, {}, True),
        (1, {}, {"x_fern_sdk_name": "cohere"}, False),
        (1, {"max_chunks_per_doc": 3}, {}, False),
        (1, {"return_documents": False}, {}, False),
        (1, {"return_documents": True}, {"x_fern_sdk_name": "cohere"}, True),
        (2, {}, {}, False),
        (2, {"return_documents": True}, {}, True),
    ],
)
def test_documents_come_back_where_the_client_expects_them(
    version: int, fields: dict[str, Any], headers: dict[str, str], returned: bool
) -> None:
    found = written(ask(BODY | fields, version, **headers), 0.0, -2.0)
    assert [each.get("document") for each in found["results"]] == (
        [{"text": "first"}, {"text": "second"}] if returned else [None, None]
    )


def test_objects_are_read_by_their_text_or_by_the_fields_named_and_come_back_whole() -> None:
    documents = [{"text": "t", "title": "T", "year": 1999}, "plain"]
    by_text = ask({**BODY, "documents": documents, "return_documents": True})
    assert [item.text for item in by_text.request.items] == ["t", "plain"]
    assert written(by_text, 1.0, 0.0)["results"][0]["document"] == documents[0]
    by_fields = ask({**BODY, "documents": documents, "rank_fields": ["title", "year", "missing"]})
    assert [item.text for item in by_fields.request.items] == ["T\n1999", "plain"]


def test_only_the_best_come_back_where_so_many_are_asked_for() -> None:
    found = written(ask({**BODY, "documents": ["a", "b", "c"], "top_n": 2}), 0.0, 2.0, 1.0)
    assert [each["index"] for each in found["results"]] == [1, 2]
    assert len(written(ask({**BODY, "top_n": 5}), 0.0, 1.0)["results"]) == 2


def test_maxsim_is_the_mean_over_the_query_where_its_length_is_fixed_and_else_the_sum() -> None:
    colbert, m3 = ask(BODY, spec=COLBERT), ask(BODY, spec=M3)
    assert isinstance(colbert.request, ScoreRequest)
    assert colbert.request.options is None
    assert [each["relevance_score"] for each in written(colbert, 16.0, 8.0)["results"]] == [0.5, 0.25]
    assert [each["relevance_score"] for each in written(m3, 16.0, 8.0)["results"]] == [16.0, 8.0]


@pytest.mark.parametrize("score", [-1e30, -800.0, -1.5, 0.0, 1.5, 800.0, 1e30])
def test_a_sigmoid_lies_between_0_and_1_and_never_overflows(score: float) -> None:
    assert 0.0 <= sigmoid(score) <= 1.0
    assert math.isclose(sigmoid(score) + sigmoid(-score), 1.0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": 3}, "query"),
        ({"query": {"image": "..."}}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "one"}, "documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"documents": [{"title": "T"}]}, "documents[0]"),
        ({"documents": ["a", {"text": ["b"]}]}, "documents[1].text"),
        ({"documents": ["a", 3]}, "documents[1]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": "3"}, "top_n"),
        ({"rank_fields": "title"}, "rank_fields"),
    ],
)
def test_what_is_no_request_is_refused_and_the_field_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        ask(BODY | fields)
    assert error.value.field == field
    assert error.value.hint


def test_errors_have_coheres_message_jinas_detail_and_our_code() -> None:
    refusal = cohere.refuse(InvalidInputError("items[1].text is bad.", field="items[1].text"), "documents")
    assert refusal.status == 400
    assert refusal.body == (
        b'{"message":"documents[1] is bad.","detail":"documents[1] is bad.",'
        b'"code":"INVALID_INPUT","param":"documents[1]"}'
    )
    assert cohere.refuse(QueueFullError("Full.", retry_after=2.0), "documents").status == 503
