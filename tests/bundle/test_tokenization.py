"""Tokenization: special tokens, both overflow policies, strange texts, threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from sie_bundle.engine.row import Ids
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.tokenization import Tokenizer, _cut_pair
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError
from tests import tiny_model
from tests.golden import tiny_tokenizers

CLS, SEP, HELLO, WORLD = 2, 3, 4, 5


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


def lists(tokenizer: Tokenizer, texts: list[str], max_length: int = 32) -> list[list[int]]:
    return [row.ids.tolist() for row in tokenizer.rows(texts, max_length)]


def test_rows_hold_special_tokens_and_no_padding(tokenizer: Tokenizer) -> None:
    assert lists(tokenizer, ["hello world", ""]) == [[CLS, HELLO, WORLD, SEP], [CLS, SEP]]
    assert tokenizer.rows(["hello"], 32)[0].ids.dtype == np.int64


def test_truncation_keeps_the_beginning_and_the_closing_token(tokenizer: Tokenizer) -> None:
    assert lists(tokenizer, ["hello world world world"], 4) == [[CLS, HELLO, WORLD, SEP]]


@pytest.mark.parametrize("family", ["bert", "roberta", "llama"])
def test_texts_pairs_and_hypotheses_lose_tokens_on_the_side_where_transformers_cuts(
    family: str, tmp_path: Path
) -> None:
    transformers: Any = import_module("transformers")
    texts = ["hello world ship yes no query", "coffee", "ship no yes hello"]
    for side, kept in ("left", False), ("left", True), ("right", True):
        given = tiny_tokenizers.make(family)
        if kept:
            given.enable_truncation(7, direction=side)
        given.save(str(tmp_path / "tokenizer.json"))
        own = Tokenizer.load(tmp_path, side="auto" if kept else "left")
        judge = transformers.PreTrainedTokenizerFast(tokenizer_object=given, truncation_side=side)
        for most in range(5, 12):
            wanted = judge(texts, truncation=True, max_length=most)["input_ids"]
            assert lists(own, texts, most) == wanted
            if not tiny_tokenizers.FAMILIES[family].pair:
                continue
            wanted = judge([texts[0]] * 3, texts, truncation=True, max_length=most)["input_ids"]
            assert [row.ids.tolist() for row in own.pairs(texts[0], texts, most)] == wanted
            wanted = judge(texts, ["coffee"] * 3, truncation="only_first", max_length=most + 2)["input_ids"]
            assert [row.ids.tolist() for row in own.hypotheses(texts, ["coffee"], most + 2)] == wanted


def test_of_a_text_that_is_far_too_long_the_end_stays_where_the_left_side_is_cut(tmp_path: Path) -> None:
    tiny_tokenizers.make("bert").save(str(tmp_path / "tokenizer.json"))
    text = "hello " * 500 + "coffee ship"
    (kept,) = Tokenizer.load(tmp_path, side="left").rows([text], 8)
    whole = Tokenizer.load(tmp_path).rows([text], 1000)[0].ids
    assert kept.ids.tolist() == [whole[0], *whole[-7:]]


def test_a_text_of_exactly_the_limit_is_left_whole(tokenizer: Tokenizer) -> None:
    assert tokenizer.rows(["hello world"], 4, "error")[0].ids.tolist() == [CLS, HELLO, WORLD, SEP]


def test_the_error_policy_names_the_item_and_the_limit(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputTooLongError) as caught:
        tokenizer.rows(["hello", "hello world world"], 4, "error")
    assert caught.value.field == "items[1].text"
    assert caught.value.limit == 4
    assert "5 tokens" in caught.value.message


@pytest.mark.parametrize("text", ["\0", "a\0b", "🚀👩‍👩‍👧", "مرحبا", " " * 100, "x" * 10_000, "[SEP]"])
def test_strange_texts_are_tokenized(tokenizer: Tokenizer, text: str) -> None:
    (row,) = tokenizer.rows([text], 32)
    assert row.ids[0] == CLS and row.ids[-1] == SEP and len(row) <= 32


def test_an_unpaired_surrogate_is_refused_and_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidInputError) as caught:
        tokenizer.rows(["fine", "\ud800"], 32)
    assert caught.value.field == "items[1].text"


def test_a_text_without_any_token_is_refused_and_named() -> None:
    bare = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(InvalidInputError) as caught:
        bare.rows(["a", ""], 4)
    assert caught.value.field == "items[1].text"


def test_a_pair_without_any_token_is_refused_and_named() -> None:
    bare = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    assert [len(row) for row in (*bare.pairs("a", ["", "a"], 4), *bare.hypotheses(["", "a"], ["a"], 4))] == [1, 2, 1, 2]
    with pytest.raises(InvalidInputError) as caught:
        bare.pairs("", ["a", ""], 4)
    assert caught.value.field == "items[1].text"
    with pytest.raises(InvalidInputError) as caught:
        bare.hypotheses(["a", ""], ["a", ""], 4)
    assert caught.value.field == "items[1].text"


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_a_text_has_the_same_tokens_in_any_company(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert lists(tokenizer, texts) == [lists(tokenizer, [text])[0] for text in texts]


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 4, 7, (3, 4)),
        (10, 3, 8, (5, 3)),
        (3, 10, 8, (3, 5)),
        (10, 12, 8, (4, 4)),
        (12, 10, 7, (4, 3)),
        (10, 12, 7, (3, 4)),
        (9, 9, 0, (0, 0)),
    ],
)
def test_of_a_pair_the_longer_loses_first_and_then_both_alike(
    first: int, second: int, room: int, kept: tuple[int, int]
) -> None:
    assert _cut_pair(first, second, room) == kept


def test_parts_that_stand_apart_are_not_one_token_where_they_meet() -> None:
    vocabulary = {"a": 0, ".": 1, "\n": 2, ".\n": 3, "b": 4}
    own = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    own.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("\\.\n|."), "isolated")
    tokenizer = Tokenizer(own)
    assert [row.ids.tolist() for row in tokenizer.framed("b", [["a.\na"]], "b", 9)] == [[4, 0, 3, 0, 4]]
    apart = [["a.", "\n", "a"], ["a.", "\n", "aaaaaa"]]
    assert [row.ids.tolist() for row in tokenizer.framed("b", apart, "b", 7)] == [
        [4, 0, 1, 2, 0, 4],
        [4, 0, 1, 2, 0, 0, 4],
    ]
    with pytest.raises(InputTooLongError, match="9 tokens; the model reads 5") as error:
        tokenizer.framed("b", apart, "b", 7, "error")
    assert error.value.field == "items[1].text"


def framed(tiny_folder: Path) -> Tokenizer:
    """With RoBERTa's two separators between a pair, of which the first is of the first type."""
    own = tokenizers.Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    own.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP]:1 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return Tokenizer(own)


def test_a_separator_of_the_first_type_stays_so_before_one_of_the_second(tiny_folder: Path) -> None:
    (row,) = framed(tiny_folder).pairs("hello world", ["ship"], 32)
    assert row.ids.tolist() == [CLS, HELLO, WORLD, SEP, SEP, 6, SEP]
    assert row.second == 4


def test_a_label_leaves_room_for_a_token_of_the_text_or_is_told_what_it_takes(tiny_folder: Path) -> None:
    tokenizer = framed(tiny_folder)
    (row,) = tokenizer.hypotheses(["hello hello"], ["world world"], 7)
    assert row.ids.tolist() == [CLS, HELLO, SEP, SEP, WORLD, WORLD, SEP]
    with pytest.raises(InputTooLongError, match="7 tokens; the model reads 6") as caught:
        tokenizer.hypotheses(["hello hello"], ["world", "world world"], 6)
    assert (caught.value.field, caught.value.limit) == ("params.labels[1]", 6)


def test_a_query_is_tokenized_once_for_all_its_documents(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = Tokenizer.load(tiny_folder), 0
    ids = tokenizer._ids

    def counted(texts: Sequence[str], **how: Any) -> list[Ids]:
        nonlocal seen
        seen += sum(map(len, texts))
        return ids(texts, **how)

    monkeypatch.setattr(tokenizer, "_ids", counted)
    query, documents = "hello " * 1000, ["world"] * 100
    rows = tokenizer.pairs(query, documents, 16)
    assert seen == len(query) + sum(map(len, documents))
    assert [row.ids.tolist() for row in rows] == [[*[HELLO] * 15, WORLD]] * 100


def test_threads_may_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    lengths = [4, 6, 8, 32] * 50
    with ThreadPoolExecutor(4) as threads:
        rows = threads.map(lambda length: tokenizer.rows(["hello " * 100], length)[0], lengths)
    assert [len(row) for row in rows] == lengths


def test_a_model_carries_its_tokenizer(tiny: EncoderModel) -> None:
    assert tiny.tokenizer.vocabulary == 61


def test_a_file_at_which_the_library_panics_is_no_tokenizer(tmp_path: Path) -> None:
    path = tiny_model.make(tmp_path) / "tokenizer.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"post_processor": told["post_processor"] | {"special_tokens": {}}}))
    with pytest.raises(ModelLoadFailedError, match="is not a tokenizer") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.details["reason"] == "corrupt"
