"""Proposals of what is no plain dense vector: rerankers, labels, sparse vectors, a vector per token."""

from __future__ import annotations

from typing import Any

import pytest

from sie_config.model.tasks import Extract, Multivector, Score, Sparse, Tasks
from sie_config.propose import Tensor
from tests.config.model_folders import (
    BERT,
    CARD,
    MODERNBERT,
    PYLATE,
    PYLATE_SIZES,
    ROBERTA,
    TOKENIZER,
    WEIGHTS,
    chain,
    labels,
    proposed,
    sentence,
)

RERANKER = ROBERTA | {"architectures": ["XLMRobertaForSequenceClassification"], **labels("LABEL_0")}


@pytest.mark.parametrize(
    ("said", "activation", "doubts"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none", []),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid", []),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none", []),
        ({}, "none", ["tasks.score.activation"]),
    ],
)
def test_a_cross_encoder_scores(said: dict[str, Any], activation: str, doubts: list[str]) -> None:
    found = proposed({"config.json": RERANKER | said, "README.md": CARD.format(tags="cross-encoder")})
    assert found.spec.tasks == Tasks(score=Score(activation=activation))  # type: ignore[arg-type]
    assert [doubt.field for doubt in found.doubts] == doubts and found.spec.status == "ready"


def test_a_cross_encoder_of_sentence_transformers_6_lists_its_one_module() -> None:
    sentence = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}
    files = {"config.json": RERANKER, "modules.json": chain("Transformer")}
    found = proposed(files | {"config_sentence_transformers.json": sentence})
    assert found.spec.tasks == Tasks(score=Score(activation="sigmoid")) and not found.doubts


def test_one_label_without_a_tag_is_a_score_in_doubt() -> None:
    found = proposed({"config.json": RERANKER})
    assert found.spec.tasks.score and found.doubts[0].field == "tasks.score"


@pytest.mark.parametrize(
    ("config", "task", "doubts"),
    [
        (labels("contradiction", "entailment", "neutral"), Extract("entailment"), 0),
        (labels("ENTAILMENT", "NOT_ENTAILMENT"), Extract("entailment"), 0),
        (labels("positive", "negative"), Extract("classes"), 0),
        (labels("a", "b") | {"problem_type": "multi_label_classification"}, Extract("classes", multi_label=True), 0),
        (labels("LABEL_0", "LABEL_1"), Extract("classes"), 1),
    ],
)
def test_labels_of_a_whole_text(config: dict[str, Any], task: Extract, doubts: int) -> None:
    found = proposed({"config.json": BERT | {"architectures": ["BertForSequenceClassification"], **config}})
    assert found.spec.tasks == Tasks(extract=task) and len(found.doubts) == doubts


def test_numbers_that_are_no_probabilities_are_waited_for() -> None:
    classifier = BERT | {"architectures": ["BertForSequenceClassification"], "problem_type": "regression"}
    assert "problem_type" in proposed({"config.json": classifier | labels("valence", "arousal")}).spec.blocked_by
    assert proposed({"config.json": classifier | labels("relevance")}).spec.status == "ready"


def test_labels_of_tokens() -> None:
    config = BERT | {"architectures": ["BertForTokenClassification"], **labels("O", "B-PER", "I-PER")}
    assert proposed({"config.json": config}).spec.tasks == Tasks(extract=Extract("entities"))


def test_a_head_that_nobody_described_for_auto_is_waited_for() -> None:
    config = BERT | {"model_type": "convbert", "architectures": ["ConvBertForTokenClassification"], **labels("O", "X")}
    assert "the head of ConvBert" in proposed({"config.json": config}).spec.blocked_by


def test_linear_layers_that_end_in_labels_are_a_classifier() -> None:
    layers = {
        "2_Dense/config.json": {"out_features": 128, "activation_function": "torch.nn.modules.activation.ReLU"},
        "3_Dense/config.json": {"out_features": 2, "activation_function": "torch.nn.modules.linear.Identity"},
    }
    sizes = WEIGHTS | {"2_Dense/model.safetensors": 1, "3_Dense/pytorch_model.bin": 1}
    files = sentence("Pooling", "Dense", "Dense", **layers, **{"config.json": BERT | labels("SAFE", "BAD")})
    found = proposed(files, sizes).spec
    assert found.tasks.extract == Extract("classes", head="2_Dense.linear relu 3_Dense.linear", pooling="mean")
    assert found.files == ("2_Dense/model.safetensors", "3_Dense/pytorch_model.bin") and found.status == "ready"


MASKED = BERT | {"architectures": ["BertForMaskedLM"]}


def test_splade_by_its_modules_and_by_its_tags() -> None:
    pooling = {"pooling_strategy": "max", "activation_function": "relu"}
    files = {"config.json": MASKED, "modules.json": chain("MLMTransformer", "SpladePooling")}
    by_modules = proposed(files | {"1_SpladePooling/config.json": pooling})
    by_tags = proposed({"config.json": MASKED, "README.md": CARD.format(tags="splade")})
    assert by_modules.spec.tasks == by_tags.spec.tasks == Tasks(sparse=Sparse(dim=30522))
    assert by_modules.spec.status == by_tags.spec.status == "ready" and not by_modules.doubts
    other = proposed(files | {"1_SpladePooling/config.json": {"pooling_strategy": "sum"}})
    assert "SPLADE with sum" in other.spec.blocked_by


def test_bge_m3_keeps_two_further_layers_beside_its_weights() -> None:
    found = proposed(sentence(), WEIGHTS | {"sparse_linear.pt": 3000, "colbert_linear.pt": 4000}).spec
    assert found.tasks.sparse == Sparse(dim=30522, kind="lexical")
    assert found.tasks.multivector == Multivector(dim=384, projection="colbert_linear", skip_first=True)
    assert found.files == ("sparse_linear.pt", "colbert_linear.pt") and found.tasks.score == Score(kind="maxsim")


LATE = Multivector(
    dim=128,
    projection="1_Dense.linear",
    query_marker="[Q] ",
    document_marker="[D] ",
    query_length=48,
    skip_punctuation=True,
)


def test_a_model_of_pylate() -> None:
    found = proposed(PYLATE, PYLATE_SIZES)
    assert found.spec.tasks == Tasks(multivector=LATE, score=Score(kind="maxsim")) and not found.doubts
    assert (found.spec.max_sequence_length, found.spec.files) == (300, ("1_Dense/model.safetensors",))


@pytest.mark.parametrize(
    ("settings", "blocked_by"),
    [
        ({"skiplist_words": ["the"]}, "a list of tokens to leave out"),
        ({"query_length": 65}, "where a window sees 64"),
    ],
)
def test_what_of_pylate_nothing_computes_is_waited_for(settings: dict[str, Any], blocked_by: str) -> None:
    name = "config_sentence_transformers.json"
    assert blocked_by in proposed(PYLATE | {name: PYLATE[name] | settings}, PYLATE_SIZES).spec.blocked_by


def test_a_marker_that_may_be_several_tokens_is_a_doubt() -> None:
    found = proposed(PYLATE | {"tokenizer_config.json": TOKENIZER}, PYLATE_SIZES)
    assert [doubt.field for doubt in found.doubts] == [
        "tasks.multivector.query_marker",
        "tasks.multivector.document_marker",
    ]


EXPANSION = {"strategy": "fixed", "attend": True, "token": None, "length": 48}
ENCODER = {
    **PYLATE,
    "config.json": MODERNBERT,
    "modules.json": chain("Transformer", "Dense", "MultiVectorMask", "Normalize"),
    "sentence_bert_config.json": {"document_length": 300, "query_expansion": EXPANSION},
    "2_MultiVectorMask/config.json": {
        "skiplist_words": [],
        "skiplist_tasks": ["document"],
        "keep_only_token_ids": None,
    },
    "config_sentence_transformers.json": {
        "model_type": "MultiVectorEncoder",
        "prompts": {"query": "[unused0] ", "document": "[D] "},
    },
    "tokenizer_config.json": TOKENIZER | {"extra_special_tokens": ["[D] "]},
}


def test_a_multi_vector_encoder_of_sentence_transformers_6() -> None:
    found = proposed(ENCODER, PYLATE_SIZES)
    assert found.spec.tasks.multivector == Multivector(
        dim=128,
        projection="1_Dense.linear",
        query_marker="[unused0]",
        document_marker="[D] ",
        query_length=48,
        attend_to_mask=True,
    )
    assert (found.spec.max_sequence_length, found.spec.status, found.doubts) == (300, "ready", ())
    plain = proposed(ENCODER | {"sentence_bert_config.json": {"document_length": 300, "query_expansion": None}})
    assert plain.spec.tasks.multivector and plain.spec.tasks.multivector.query_length == 0


@pytest.mark.parametrize(
    ("name", "settings", "blocked_by"),
    [
        ("sentence_bert_config.json", {"query_expansion": EXPANSION | {"strategy": "min"}}, "the strategy 'min'"),
        ("sentence_bert_config.json", {"query_expansion": EXPANSION | {"token": "<pad>"}}, "the token '<pad>'"),
        ("2_MultiVectorMask/config.json", {"skiplist_words": ["."], "skiplist_tasks": ["query"]}, "skiplist_tasks"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [7]}, "keep_only_token_ids"),
    ],
)
def test_what_of_an_encoder_nothing_computes_is_waited_for(
    name: str, settings: dict[str, Any], blocked_by: str
) -> None:
    assert blocked_by in proposed(ENCODER | {name: settings}, PYLATE_SIZES).spec.blocked_by


def test_queries_are_as_long_as_they_were_trained_whether_they_are_filled_up_or_not() -> None:
    name = "config_sentence_transformers.json"
    plain = proposed(PYLATE | {name: PYLATE[name] | {"query_length": 10, "do_query_expansion": False}}, PYLATE_SIZES)
    assert plain.spec.tasks.multivector and plain.spec.tasks.multivector.query_length == 0
    assert plain.spec.profiles["default"].options == {"query_max_length": 10}
    longer = proposed(PYLATE | {name: PYLATE[name] | {"query_length": 48, "document_length": 20}}, PYLATE_SIZES).spec
    assert longer.tasks.multivector and longer.tasks.multivector.document_length == 20
    assert (longer.tasks.multivector.query_length, longer.max_sequence_length) == (48, 48)
    transformer = {"document_length": 300, "query_expansion": None}
    free = proposed(ENCODER | {"sentence_bert_config.json": transformer}, PYLATE_SIZES).spec
    assert free.tasks.multivector and free.tasks.multivector.document_length == 300
    assert free.max_sequence_length == TOKENIZER["model_max_length"]
    transformer = {"document_length": 300, "query_length": 24, "query_expansion": None}
    cut = proposed(ENCODER | {"sentence_bert_config.json": transformer}, PYLATE_SIZES).spec
    assert cut.profiles["default"].options == {"query_max_length": 24} and cut.max_sequence_length == 300
    both = {"query_length": 24, "query_expansion": EXPANSION}
    assert "24 tokens" in proposed(ENCODER | {"sentence_bert_config.json": both}, PYLATE_SIZES).spec.blocked_by


def test_a_colbert_of_stanford() -> None:
    artifact = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 32, "doc_maxlen": 300}
    config = BERT | {"architectures": ["HF_ColBERT"]}
    files = {"config.json": config, "artifact.metadata": artifact | {"dim": 96, "mask_punctuation": True}}
    found = proposed(files, tensors={"linear.weight": Tensor("F32", (96, 384))}).spec
    assert found.tasks.multivector == Multivector(
        dim=96, query_marker="[unused0]", document_marker="[unused1]", query_length=32, skip_punctuation=True
    )
    assert found.max_sequence_length == 300 and found.status == "ready"
    assert "linear.weight, which the weights lack" in proposed(files, tensors={}).spec.blocked_by


def test_a_colbert_that_does_not_say_how_it_was_trained_has_stanfords_defaults() -> None:
    files = {"config.json": BERT | {"architectures": ["HF_ColBERT"]}}
    found = proposed(files, tensors={"linear.weight": Tensor("F32", (96, 384))})
    assert found.spec.tasks.multivector == Multivector(
        dim=96, query_marker="[unused0]", document_marker="[unused1]", query_length=32, skip_punctuation=True
    )
    assert found.notes["tasks.multivector.skip_punctuation"] == "ColBERT's defaults"


def test_a_causal_reranker_waits_for_its_template() -> None:
    config = BERT | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    found = proposed({"config.json": config, "README.md": CARD.format(tags="text-ranking")}).spec
    assert found.status == "planned" and "the template by which Qwen3ForCausalLM ranks" in found.blocked_by
