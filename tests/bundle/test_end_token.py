"""A token behind every text that the spec names, because the publisher's tokenizer.json leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from sie_bundle.models.tokenization import Tokenizer, end_token
from sie_config.model.tasks import Dense, Tasks
from sie_sdk.errors import InputTooLongError, ModelLoadFailedError
from tests import tiny_model

WORDS = {"<s>": 0, "</s>": 1, "[UNK]": 2, "a": 3, "b": 4, "c": 5}


def made(processor: Any = None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if processor is not None:
        tokenizer.post_processor = processor
    return tokenizer


def opening() -> Any:
    """As Mistral's: a token in front and none behind."""
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", WORDS["<s>"])]
    )


def closed() -> Any:
    return processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])


def ids(tokenizer: Tokenizer, text: str, max_length: int = 16) -> list[int]:
    return [int(number) for number in tokenizer.rows([text], max_length)[0].ids]


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        (None, [3, 4, 1]),
        (opening(), [0, 3, 4, 1]),
        (closed(), [0, 3, 4, 1]),
        (processors.ByteLevel(trim_offsets=False), [3, 4, 1]),
    ],
    ids=["nothing", "a token in front", "there already", "no tokens"],
)
def test_every_row_ends_with_it_once(processor: Any, wanted: list[int]) -> None:
    assert ids(Tokenizer(made(processor), "</s>"), "a b") == wanted


def test_without_it_nothing_changes() -> None:
    assert ids(Tokenizer(made(opening())), "a b") == [0, 3, 4]


def test_it_stays_when_a_text_is_cut() -> None:
    own = Tokenizer(made(opening()), "</s>")
    assert ids(own, "a b c", 4) == [0, 3, 4, 1]
    with pytest.raises(InputTooLongError):
        own.rows(["a b c"], 4, "error")


def test_both_texts_of_a_pair_end_with_it() -> None:
    (row,) = Tokenizer(made(opening()), "</s>").pairs("a", ["b"], 16)
    assert row.ids.tolist() == [0, 3, 1, 0, 4, 1]


def test_a_token_that_the_tokenizer_has_not_is_refused(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    with pytest.raises(ModelLoadFailedError, match=r"no token '<end>'"):
        Tokenizer.load(folder, "<end>")


def test_the_spec_of_a_model_says_it() -> None:
    spec = tiny_model.spec(Path("unused"))
    assert end_token(spec) == ""
    assert end_token(msgspec.structs.replace(spec, tasks=Tasks(dense=Dense(dim=8, end_token="</s>")))) == "</s>"
