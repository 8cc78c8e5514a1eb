"""Proposals: what settings say of a text's tokens is held against what tokenizer.json does."""

from __future__ import annotations

from typing import Any

import pytest

from sie_config.model.tasks import Dense
from sie_config.propose import Proposal, wanted
from sie_config.propose.folder import TOKENIZER_JSON
from tests.config.model_folders import BERT, TOKENIZER, folder, labels, proposed, sentence


def doubted(found: Proposal) -> list[str]:
    return [doubt.field for doubt in found.doubts if doubt.field != "licence"]


@pytest.mark.parametrize(
    ("normalizer", "status"),
    [
        ({"type": "BertNormalizer", "lowercase": True}, "ready"),
        ({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}, "ready"),
        ({"type": "NFC"}, "planned"),
        (None, "planned"),
    ],
)
def test_small_letters_must_be_made_by_the_tokenizer_itself(normalizer: Any, status: str) -> None:
    files = sentence(**{"sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": True}})
    assert proposed(files | {"tokenizer.json": {"normalizer": normalizer}}).spec.status == status
    assert doubted(proposed(files)) == ["tasks"]


def test_texts_that_lose_their_beginning_are_said_where_the_tokenizers_settings_ask_for_it() -> None:
    for side, said in ("left", "left"), ("right", "auto"), (None, "auto"):
        tokenizer = TOKENIZER | {"truncation_side": side}
        assert proposed(sentence(**{"tokenizer_config.json": tokenizer})).spec.truncation_side == said
    file = {"truncation": {"direction": "Left", "max_length": 512}}
    right = {"tokenizer_config.json": TOKENIZER | {"truncation_side": "right"}, "tokenizer.json": file}
    assert proposed(sentence(**right)).spec.truncation_side == "right"
    for name in ("processor_kwargs", "tokenizer_args"):
        own = {"sentence_bert_config.json": {name: {"truncation_side": "left"}}}
        assert proposed(sentence(**own)).spec.truncation_side == "left"
        assert proposed(sentence(**right, **own)).spec.truncation_side == "auto", "tokenizer.json does that"


def test_an_end_token_is_said_where_the_tokenizers_settings_ask_for_it() -> None:
    tokenizer = TOKENIZER | {"add_eos_token": True, "eos_token": {"content": "</s>"}}
    files = sentence(**{"config.json": BERT | {"model_type": "qwen2"}, "tokenizer_config.json": tokenizer})
    assert proposed(files).spec.tasks.dense == Dense(dim=384, end_token="</s>")
    reranker = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    assert "tasks" in doubted(proposed({"config.json": reranker, "tokenizer_config.json": tokenizer}))


NORMALIZER = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
CASED = NORMALIZER | {"lowercase": False}
BERTS = "BertTokenizerFast"


@pytest.mark.parametrize(
    ("said", "normalizer", "waits_for"),
    [
        ({"tokenizer_class": BERTS, "do_lower_case": False}, NORMALIZER, "do_lower_case: false"),
        ({"tokenizer_class": BERTS, "do_lower_case": True}, CASED, "do_lower_case: true"),
        ({"tokenizer_class": BERTS}, CASED, "do_lower_case: true"),
        ({"tokenizer_class": BERTS}, NORMALIZER, ""),
        ({"do_lower_case": False}, NORMALIZER, "do_lower_case: false"),
        ({}, CASED, ""),
        ({"tokenizer_class": BERTS, "do_lower_case": False}, CASED, ""),
        ({"tokenizer_class": "MPNetTokenizer", "strip_accents": False}, NORMALIZER, "strip_accents: false"),
        ({"tokenizer_class": BERTS, "strip_accents": True}, NORMALIZER, ""),
        ({"tokenizer_class": BERTS, "strip_accents": True}, NORMALIZER | {"strip_accents": True}, ""),
        ({"tokenizer_class": BERTS, "tokenize_chinese_chars": False}, NORMALIZER, "tokenize_chinese_chars: false"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, NORMALIZER, ""),
        ({"tokenizer_class": BERTS, "do_lower_case": False}, {"type": "Lowercase"}, ""),
        ({"tokenizer_class": BERTS, "do_lower_case": False}, None, ""),
        (
            {"tokenizer_class": BERTS, "do_lower_case": False},
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, NORMALIZER]},
            "do_lower_case: false",
        ),
    ],
)
def test_letters_that_the_tokenizers_class_would_make_otherwise_are_waited_for(
    said: dict[str, Any], normalizer: Any, waits_for: str
) -> None:
    files = sentence(**{"tokenizer_config.json": TOKENIZER | said, "tokenizer.json": {"normalizer": normalizer}})
    spec = proposed(files).spec
    assert (waits_for in spec.blocked_by) if waits_for else spec.status == "ready"


@pytest.mark.parametrize("kind", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("asked", [False, True, None])
def test_a_space_before_every_text_is_waited_for_where_the_class_would_set_it_otherwise(
    kind: str, done: bool, asked: bool | None
) -> None:
    said = TOKENIZER | {"tokenizer_class": kind, "add_prefix_space": asked}
    step = {"type": "ByteLevel", "add_prefix_space": done}
    for pre_tokenizer in (step, {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, step]}):
        files = {"tokenizer_config.json": said, "tokenizer.json": {"pre_tokenizer": pre_tokenizer}}
        waits = kind == "RobertaTokenizer" and asked is not None and asked is not done
        assert ("add_prefix_space" in proposed(sentence(**files)).spec.blocked_by) == waits


PIECE = {"Sequence": {"id": "B", "type_id": 1}}
TYPED = {"type": "TemplateProcessing", "single": [], "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, PIECE]}
UNTYPED = TYPED | {"pair": [{"Sequence": {"id": "B", "type_id": 0}}]}
RANKS = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
NLI = BERT | {"architectures": ["BertForSequenceClassification"], **labels("entailment", "neutral", "contradiction")}
WITHOUT = ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("config", "said", "processor", "waits_for"),
    [
        (RANKS, {"model_input_names": WITHOUT}, TYPED, "model_input_names"),
        (NLI, {"model_input_names": WITHOUT}, TYPED, "model_input_names"),
        (NLI, {"model_input_names": WITHOUT}, {"type": "Sequence", "processors": [{}, TYPED]}, "model_input_names"),
        (RANKS, {"model_input_names": WITHOUT}, {"type": "BertProcessing"}, "model_input_names"),
        (RANKS, {"tokenizer_class": "DistilBertTokenizer"}, TYPED, "DistilBertTokenizer"),
        (RANKS, {"tokenizer_class": "DistilBertTokenizer"}, UNTYPED, ""),
        (RANKS, {"tokenizer_class": "DistilBertTokenizer", "model_input_names": ["token_type_ids"]}, TYPED, ""),
        (RANKS, {"tokenizer_class": "TokenizersBackend"}, TYPED, "TokenizersBackend"),
        (RANKS, {"tokenizer_class": BERTS}, TYPED, ""),
        (RANKS | {"type_vocab_size": 1}, {"model_input_names": WITHOUT}, TYPED, ""),
        (BERT, {"model_input_names": WITHOUT}, TYPED, ""),
    ],
)
def test_pairs_have_token_types_only_where_the_reference_gives_the_model_some(
    config: dict[str, Any], said: dict[str, Any], processor: Any, waits_for: str
) -> None:
    files = {"config.json": config, "tokenizer_config.json": TOKENIZER | said}
    spec = proposed(files | {"tokenizer.json": {"post_processor": processor}}).spec
    assert (waits_for in spec.blocked_by) if waits_for else spec.status == "ready"


def test_a_class_that_says_nothing_of_types_is_a_doubt() -> None:
    files = {"config.json": RANKS, "tokenizer_config.json": TOKENIZER | {"tokenizer_class": "PreTrainedTokenizerFast"}}
    assert doubted(proposed(files | {"tokenizer.json": {"post_processor": TYPED}})).count("tasks") == 1
    assert "tasks" not in doubted(proposed(files | {"tokenizer.json": {"post_processor": UNTYPED}}))


@pytest.mark.parametrize(
    ("settings", "size", "asked_for"),
    [
        ({}, 17_000_000, False),
        ({"do_lower_case": None, "strip_accents": None}, 17_000_000, False),
        ({"add_prefix_space": True}, 17_000_000, True),
        ({"do_lower_case": False}, 17_000_000, True),
        ({}, 700_000, True),
    ],
)
def test_a_large_tokenizer_is_read_only_where_settings_say_what_it_has_to_do(
    settings: dict[str, Any], size: int, asked_for: bool
) -> None:
    there = folder({"config.json": BERT, "tokenizer_config.json": TOKENIZER | settings}, {TOKENIZER_JSON: size})
    assert (TOKENIZER_JSON in wanted(there)) == asked_for
