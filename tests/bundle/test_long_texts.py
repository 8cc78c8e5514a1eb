"""Texts of a hundred thousand tokens: cut, read in windows or refused by name, and those beside them unaffected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_bundle.models.label_tokenizer import LabelTokenizer
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.tokenization import Tokenizer
from sie_bundle.operations import encode, extract, score
from sie_bundle.operations.operation import Plan
from sie_config.model.tasks import Extract, Score, Tasks
from sie_sdk import results
from sie_sdk.errors import InputTooLongError
from sie_sdk.types import (
    EncodeParams,
    EncodeRequest,
    ExtractParams,
    ExtractRequest,
    Item,
    ScoreRequest,
    Timing,
    Usage,
)
from tests.bundle.test_extract import NER, Knowing
from tests.bundle.test_families import load
from tests.bundle.test_spans import opened
from tests.golden import gliner_folder, tiny_tokenizers

COUNT = 100_000
LONG = "hello " * COUNT
STRICT = {"overflow_policy": "error"}


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> EncoderModel:
    model = load("bert-reranker", tmp_path_factory.mktemp("cross"))
    model.spec = msgspec.structs.replace(model.spec, tasks=Tasks(score=Score()))
    return model


def computed(model: EncoderModel, plan: Plan) -> bytes:
    return plan.finish(model.forward(plan.rows, dict.fromkeys(plan.heads, range(len(plan.rows)))), Timing(), Usage())


def test_encode_reads_what_the_model_can_and_the_text_beside_it_as_ever(tiny: EncoderModel) -> None:
    def vectors(*texts: str) -> list[np.ndarray]:
        plan = encode.plan(tiny, tiny.spec, EncodeRequest([Item(text=text) for text in texts]))
        assert all(len(row) <= tiny.spec.max_sequence_length for row in plan.rows)
        return [np.asarray(each.dense) for each in results.read_encode(computed(tiny, plan))]

    found = vectors("ship", LONG, "world")
    expected = vectors("ship", "hello " * 40, "world")
    assert np.allclose(found, expected, atol=1e-6)


def test_score_cuts_the_document_and_keeps_the_query(cross: EncoderModel) -> None:
    def scores(*documents: str) -> list[float]:
        request = ScoreRequest(Item(text="ship"), [Item(text=document) for document in documents])
        found = results.read_score(computed(cross, score.plan(cross, cross.spec, request))).scores
        return [each.score for each in sorted(found, key=lambda each: each.index)]

    assert scores("world", LONG) == pytest.approx(scores("world", "hello " * 40), abs=1e-5)


@pytest.mark.parametrize("operation", ["encode", "score"])
def test_where_nothing_is_to_be_cut_the_text_is_named_with_the_limit(
    operation: str, tiny: EncoderModel, cross: EncoderModel
) -> None:
    items = [Item(text="ship"), Item(text=LONG)]
    with pytest.raises(InputTooLongError) as refused:
        if operation == "encode":
            encode.plan(tiny, tiny.spec, EncodeRequest(items, EncodeParams(options=STRICT)))
        else:
            score.plan(cross, cross.spec, ScoreRequest(Item(text="ship"), items, options=STRICT))
    model = tiny if operation == "encode" else cross
    assert refused.value.field == "items[1].text" and refused.value.limit == model.spec.max_sequence_length


def test_extract_reads_all_of_it_in_windows_and_no_more_windows_than_there_may_be() -> None:
    model = Knowing(Tokenizer(tiny_tokenizers.make("bert")), Extract("entities", overlap=2), NER)

    def entities(*texts: str) -> list[list[tuple[int | None, int | None]]]:
        plan = extract.plan(model, model.spec, ExtractRequest([Item(text=text) for text in texts]))
        outputs = model.forward(plan.rows, dict.fromkeys(plan.heads, range(len(plan.rows))))
        found = results.read_extract(plan.finish(outputs, Timing(), Usage()))
        return [[(each.start, each.end) for each in result.entities] for result in found]

    words, (short,) = entities("ship", LONG), entities("ship")
    assert words[0] == short
    assert words[1] == [(number * 6, number * 6 + 5) for number in range(COUNT)]
    with pytest.raises(InputTooLongError) as refused:
        entities("ship", LONG, LONG)
    assert refused.value.field == "items[2].text" and refused.value.limit == extract.MAX_WINDOWS


def test_what_stands_behind_the_text_that_is_too_much_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tokenizer says of a token takes hundreds of bytes, and a request may have 64 MB of text."""
    model = Knowing(Tokenizer(tiny_tokenizers.make("bert")), Extract("entities", overlap=2), NER)
    read: list[str] = []
    encode_all = Tokenizer._encodings

    def encodings(self: Tokenizer, texts: Sequence[str], **more: Any) -> Any:
        read.extend(texts)
        return encode_all(self, texts, **more)

    monkeypatch.setattr(Tokenizer, "_encodings", encodings)
    monkeypatch.setattr(extract, "LOT", 2 * len(LONG))
    texts = ["ship", LONG, LONG, "world", LONG, LONG]
    with pytest.raises(InputTooLongError) as refused:
        extract.plan(model, model.spec, ExtractRequest([Item(text=text) for text in texts]))
    assert refused.value.field == "items[2].text" and read == texts[:4]


def test_a_text_of_more_words_than_windows_may_hold_is_not_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(gliner_folder.make("bert", tmp_path))
    assert isinstance(model.tokenizer, LabelTokenizer)
    monkeypatch.setattr(extract, "MAX_WINDOWS", 2)
    most = 2 * model.tokenizer.config.max_len
    request = ExtractRequest([Item(text="ship"), Item(text="." * (most + 1))], ExtractParams(labels=["ship"]))
    with pytest.raises(InputTooLongError, match=f"has over {most} words") as refused:
        extract.plan(model, model.spec, request)
    assert (refused.value.field, refused.value.limit) == ("items[1].text", most)
