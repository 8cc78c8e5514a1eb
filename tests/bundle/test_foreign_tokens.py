"""Tokens that a model has no embeddings of: those of a sibling that reads images stay text, any other is a fault."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import tokenizers

from sie_bundle.models.checkpoint import Checkpoint
from sie_config.model.tasks import Score, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests import tiny_model

FOREIGN = "<image_soft_token>"


def add(folder: Path, token: str, *, special: bool) -> None:
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    (own.add_special_tokens if special else own.add_tokens)([token])
    own.save(str(folder / "tokenizer.json"))


def test_a_special_token_that_is_not_embedded_is_read_as_text(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    plain = Checkpoint(tiny_model.spec(folder), folder).tokenizer
    add(folder, FOREIGN, special=True)
    own = Checkpoint(tiny_model.spec(folder), folder).tokenizer
    assert own.vocabulary == plain.vocabulary + 1
    for text in ("hello world", f"hello {FOREIGN} world"):
        rows = [[int(number) for number in each.rows([text], 64)[0].ids] for each in (own, plain)]
        assert rows[0] == rows[1] and max(rows[0]) < plain.vocabulary


def test_a_word_that_is_not_embedded_is_refused(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    add(folder, "lantern", special=False)
    with pytest.raises(ModelLoadFailedError, match="its tokenizer makes"):
        Checkpoint(tiny_model.spec(folder), folder)


def test_a_model_that_scores_needs_its_special_tokens_in_texts(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    add(folder, FOREIGN, special=True)
    spec = msgspec.structs.replace(tiny_model.spec(folder), tasks=Tasks(score=Score(kind="yes_no")))
    with pytest.raises(ModelLoadFailedError, match="its tokenizer makes"):
        Checkpoint(spec, folder)
