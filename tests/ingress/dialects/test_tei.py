"""The dialect of text-embeddings-inference: requests in, answers and errors out, as version 1.9.3 gave them."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from sie_config.model.tasks import Dense, Extract, Score, Sparse, Tasks
from sie_ingress.dialects import tei, tei_server
from sie_ingress.dialects.dialect import Question
from sie_sdk import wire
from sie_sdk.errors import (
    InferenceError,
    InvalidInputError,
    ModelLoadFailedError,
    ModelNotFoundError,
    PayloadTooLargeError,
    ProvisioningError,
    QueueFullError,
    RateLimitedError,
    SIEError,
)
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, ScoreRequest
from tests.ingress.conftest import RERANKER
from tests.ingress.conftest import SPEC as ANY_SPEC
from tests.ingress.dialects.worker_replies import MODEL, REQUEST_ID, asked, dense, labels, scores, sparse

SPEC = msgspec.structs.replace(ANY_SPEC, id=MODEL, tasks=Tasks(Dense(dim=2, dims=(1,)), Sparse(dim=100)))
PROMPTED = msgspec.structs.replace(SPEC, tasks=Tasks(Dense(dim=2, query_prompt="query: ", document_prompt="passage: ")))
CLASSIFIER = msgspec.structs.replace(SPEC, tasks=Tasks(extract=Extract("classes")))
EMBED, SPARSE = (partial(tei.read_embed, output=output) for output in ("dense", "sparse"))


def params(*outputs: str, **params: Any) -> EncodeParams:
    return msgspec.convert({"output_types": outputs or ("dense",), "output_dtype": "float32", **params}, EncodeParams)


def embed(spec: Any = SPEC, **fields: Any) -> Question:
    return asked(EMBED, {"inputs": "a", **fields}, spec)


def test_vectors_come_in_a_list_even_for_one_text() -> None:
    one, two = embed(), embed(inputs=["a", "b"])
    assert one.request == EncodeRequest([Item(text="a")], params(options={"normalize": True}))
    assert two.request == EncodeRequest([Item(text="a"), Item(text="b")], params(options={"normalize": True}))
    assert one.write(dense([0.5, -0.1]), REQUEST_ID) == b"[[0.5,-0.1]]"
    assert two.write(dense([0.5, -0.1], [1, 0]), REQUEST_ID) == b"[[0.5,-0.1],[1.0,0.0]]"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"truncate": True}, {"normalize": True, "overflow_policy": "truncate_text"}),
        ({"truncate": None}, {"normalize": True}),
        ({"truncate": False}, {"normalize": True, "overflow_policy": "error"}),
        ({"truncation_direction": "Left"}, {"normalize": True, "overflow_policy": "error"}),
        ({"normalize": False}, {"normalize": False}),
        ({"dimensions": 1}, {"normalize": True, "dimensions": 1}),
        ({"dimensions": 2}, {"normalize": True, "dimensions": 2}),
        ({"prompt_name": "query"}, {"normalize": True, "is_query": True}),
        ({"prompt_name": "passage"}, {"normalize": True, "is_query": False}),
    ],
)
def test_what_a_request_says_of_its_texts_becomes_options(fields: Any, options: Any) -> None:
    assert embed(**fields).request == EncodeRequest([Item(text="a")], params(options=options))


def test_nothing_is_put_before_a_text_unless_a_prompt_is_named() -> None:
    plain, query = embed(PROMPTED), embed(PROMPTED, prompt_name="query")
    assert plain.request == EncodeRequest([Item(text="a")], params(instruction="", options={"normalize": True}))
    assert query.request == EncodeRequest([Item(text="a")], params(options={"normalize": True, "is_query": True}))


def test_sparse_vectors_are_pairs_of_index_and_value() -> None:
    question = asked(SPARSE, {"inputs": ["a", "b"]}, SPEC)
    assert question.request == EncodeRequest([Item(text="a"), Item(text="b")], params("sparse"))
    assert question.write(sparse(([3, 7], [0.5, 0.1]), ([], [])), REQUEST_ID) == (
        b'[[{"index":3,"value":0.5},{"index":7,"value":0.1}],[]]'
    )


def test_similarity_is_the_cosine_of_the_first_text_with_each_other() -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}, "parameters": {"truncate": True}}
    question = asked(tei.read_similarity, body, SPEC)
    assert [item.text for item in question.request.items] == ["a", "b", "c"]
    assert question.write(dense([1, 0], [0.5, 0.5], [1, 0]), REQUEST_ID) == b"[0.5,1.0]"


def test_ranks_come_best_first_as_sigmoids_or_raw_with_or_without_their_texts() -> None:
    body = {"query": "q", "texts": ["first", "second"]}
    question = asked(tei.read_rerank, body, RERANKER)
    assert question.request == ScoreRequest(
        Item(text="q"), [Item(text="first"), Item(text="second")], options={"activation": "none"}
    )
    assert question.write(scores(-2.0, 0.0), REQUEST_ID) == (
        b'[{"index":1,"score":0.5},{"index":0,"score":0.11920292202211755}]'
    )
    raw = asked(tei.read_rerank, {**body, "raw_scores": True, "return_text": True}, RERANKER)
    assert raw.write(scores(-2.0, 0.0), REQUEST_ID) == (
        b'[{"index":1,"text":"second","score":0.0},{"index":0,"text":"first","score":-2.0}]'
    )


@pytest.mark.parametrize(
    ("inputs", "texts", "answer"),
    [
        ("a", ["a"], b'[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]'),
        (["a"], ["a"], b'[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]'),
        ([["a"]], ["a"], b'[[{"score":0.75,"label":"yes"},{"score":0.25,"label":"no"}]]'),
    ],
)
def test_labels_come_in_a_list_for_a_text_and_in_a_list_of_lists_for_a_batch(
    inputs: Any, texts: list[str], answer: bytes
) -> None:
    question = asked(tei.read_predict, {"inputs": inputs}, CLASSIFIER)
    assert question.request == ExtractRequest([Item(text=text) for text in texts], ExtractParams())
    assert question.write(labels({"yes": 0.75, "no": 0.25}), REQUEST_ID) == answer


def test_a_reranker_has_one_label_for_each_pair_in_their_order() -> None:
    batch = asked(tei.read_predict, {"inputs": [["q", "first"], ["q", "second"]]}, RERANKER)
    assert batch.request == ScoreRequest(
        Item(text="q"), [Item(text="first"), Item(text="second")], options={"activation": "none"}
    )
    assert batch.write(scores(-2.0, 0.0), REQUEST_ID) == (
        b'[[{"score":0.11920292202211755,"label":"LABEL_0"}],[{"score":0.5,"label":"LABEL_0"}]]'
    )
    one = asked(tei.read_predict, {"inputs": ["q", "first"], "raw_scores": True}, RERANKER)
    assert one.write(scores(-2.0), REQUEST_ID) == b'[{"score":-2.0,"label":"LABEL_0"}]'


@pytest.mark.parametrize(
    ("body", "spec", "operation"),
    [
        ({"inputs": "a"}, SPEC, "encode"),
        ({"inputs": ["a"]}, CLASSIFIER, "extract"),
        ({"inputs": {"source_sentence": "a", "sentences": ["b"]}}, SPEC, "encode"),
        ({"query": "q", "texts": ["a"]}, RERANKER, "score"),
    ],
)
def test_at_the_root_a_request_is_known_by_its_fields_and_by_its_model(body: Any, spec: Any, operation: str) -> None:
    assert asked(tei.read_any, body, spec).operation == operation


def test_at_the_root_sparse_vectors_come_of_a_model_that_has_no_others() -> None:
    splade = msgspec.structs.replace(SPEC, tasks=Tasks(sparse=Sparse(dim=100)))
    assert asked(tei.read_any, {"inputs": "a"}, splade).request == EncodeRequest([Item(text="a")], params("sparse"))


@pytest.mark.parametrize(
    ("read", "body", "status", "kind"),
    [
        (EMBED, {"inputs": ""}, 400, "Empty"),
        (EMBED, {"inputs": []}, 400, "Empty"),
        (EMBED, {"inputs": ["a", ""]}, 400, "Empty"),
        (EMBED, {"inputs": 3}, 422, "Validation"),
        (EMBED, {}, 422, "Validation"),
        (EMBED, {"inputs": "a", "normalize": None}, 422, "Validation"),
        (EMBED, {"inputs": "a", "truncation_direction": "x"}, 422, "Validation"),
        (EMBED, {"inputs": "a", "prompt_name": "poem"}, 422, "Validation"),
        (EMBED, {"inputs": "a", "dimensions": 5000}, 422, "Validation"),
        (EMBED, {"inputs": ["a"] * 4097}, 422, "Validation"),
        (tei.read_similarity, {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty"),
        (tei.read_similarity, {"inputs": {"source_sentence": "", "sentences": ["a"]}}, 400, "Empty"),
        (tei.read_rerank, {"query": "q", "texts": []}, 400, "Empty"),
        (tei.read_rerank, {"query": "q", "texts": "a"}, 422, "Validation"),
        (tei.read_rerank, {"query": "q", "texts": ["a"] * 1001}, 422, "Validation"),
        (tei.read_predict, {"inputs": []}, 422, "Validation"),
        (tei.read_predict, {"inputs": [["a", "b", "c"]]}, 422, "Validation"),
        (tei.read_predict, {"inputs": [["a", "b"], ["c", "d"]]}, 422, "Validation"),
        (tei.read_predict, {"inputs": [["a", "b"], ["c"]]}, 422, "Validation"),
        (tei.read_predict, {"inputs": ["a", ["b"]]}, 422, "Validation"),
        (tei.read_predict, {"inputs": [[""]]}, 400, "Empty"),
        (tei.read_predict, {"inputs": "a", "raw_scores": True}, 422, "Validation"),
        (tei.read_predict, {"inputs": "a"}, 424, "Backend"),
        (tei.read_any, [], 422, "Validation"),
    ],
)
def test_what_is_no_request_is_refused_with_teis_status(read: Any, body: Any, status: int, kind: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        asked(read, body, SPEC)
    refusal = tei_server.refuse(error.value, "inputs")
    assert (refusal.status, msgspec.json.decode(refusal.body)["error_type"]) == (status, kind)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidInputError("It cannot.", field="route"), 424, "Backend"),
        (InvalidInputError("Not named.", field="model"), 400, "Validation"),
        (InvalidInputError("Wrong.", field="items[0].text"), 422, "Validation"),
        (PayloadTooLargeError("Large."), 413, "Validation"),
        (ModelNotFoundError("None."), 404, "Validation"),
        (RateLimitedError("Much."), 429, "Overloaded"),
        (QueueFullError("Full."), 429, "Overloaded"),
        (ProvisioningError("Not yet."), 503, "Unhealthy"),
        (InferenceError("Not finite."), 424, "Backend"),
        (ModelLoadFailedError("Broken."), 424, "Backend"),
        (SIEError("Broken."), 500, "Backend"),
    ],
)
def test_errors_have_teis_status_and_type_and_our_code(error: SIEError, status: int, kind: str) -> None:
    refusal = tei_server.refuse(error, "inputs")
    said = msgspec.json.decode(refusal.body)
    assert (refusal.status, said["error_type"], said["error"], said["code"]) == (status, kind, str(error), error.code)


@pytest.mark.parametrize(
    ("tasks", "kind"),
    [
        (Tasks(Dense(dim=2)), {"embedding": {"pooling": "mean"}}),
        (Tasks(sparse=Sparse(dim=2)), {"embedding": {"pooling": "splade"}}),
        (Tasks(score=Score()), {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        (
            Tasks(extract=Extract("classes", labels=("no", "yes"))),
            {"classifier": {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}},
        ),
    ],
)
def test_a_model_is_told_of_as_teis_own(tasks: Tasks, kind: dict[str, Any]) -> None:
    told = msgspec.json.decode(tei_server.info(msgspec.structs.replace(SPEC, tasks=tasks), wire.DEFAULT_LIMITS))
    assert (told["model_id"], told["max_input_length"], told["model_type"]) == (MODEL, 16, kind)
