"""Spans: words, labels in front of them, windows of long texts, and which of several candidates stays."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.label_tokenizer import SHARE, WORD, LabelTokenizer, windows
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import extract, spans
from sie_bundle.operations.spans import Candidates
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Tasks
from sie_sdk import results
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError
from sie_sdk.types import Entity, ExtractParams, ExtractRequest, Item, Timing, Usage
from tests.golden import gliner_folder

LABELS = ["person", "ship", "coffee"]
LONG = " ".join(["hello world a ship", "coffee of the lighthouse", "yes no query x"] * 14)


def spec(folder: Path, longest: int = 400) -> ModelSpec:
    return ModelSpec(
        id="random/gliner",
        family="gliner",
        tasks=Tasks(extract=Extract(kind="spans", overlap=8)),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=longest,
        revision="tiny",
    )


def opened(folder: Path, longest: int = 400) -> EncoderModel:
    model = EncoderModel(Checkpoint(spec(folder, longest), folder), precision_wanted="float32")
    model.try_out()
    return model


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda kind: opened(gliner_folder.make(kind, tmp_path_factory.mktemp(kind))))


def found(model: EncoderModel, texts: list[str], labels: list[str] | None = None, **options: Any) -> list[list[Entity]]:
    request = ExtractRequest([Item(text=text) for text in texts], ExtractParams(labels=labels, options=options))
    plan = extract.plan(model, model.spec, request)
    computed = model.forward(plan.rows, {"spans": range(len(plan.rows))}) if plan.rows else {}
    reply = plan.finish(computed, Timing(*[0.0] * 6), Usage(input_tokens=1))
    return [own.entities for own in results.read_extract(reply)]


def rows(model: EncoderModel, text: str, labels: list[str], longest: int) -> Any:
    assert isinstance(model.tokenizer, LabelTokenizer)
    return model.tokenizer.labelled([text], labels, longest, 8)[0]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_words_are_letters_and_digits_and_every_other_character_by_itself() -> None:
    assert WORD.findall("A ship-owner's x_2, 3.5 € 👋🏽") == [
        *("A", "ship-owner", "'", "s", "x_2", ",", "3", ".", "5", "€", "👋", "🏽")
    ]


def test_a_row_has_the_labels_behind_their_markers_and_says_where_labels_and_words_are(load: Any) -> None:
    model = load("bert")  # whose labels' states are those of their first tokens
    own = rows(model, "hello, world", ["ship", "yes no"], 100)
    (row,), tokenizer = own.rows, model.tokenizer
    names = {number: token for token, number in tokenizer.tokens().items()}
    told = [names[number] for number in row.ids.tolist()]
    assert told == [
        *("[CLS]", "<<ENT>>", "ship", "<<ENT>>", "yes", "no", "<<SEP>>", "hello", "[UNK]", "world", "[SEP]")
    ]
    assert row.marks.labels.tolist() == [2, 4] and row.marks.words.tolist() == [7, 8, 9]
    assert own.words.tolist() == [[0, 5], [5, 6], [7, 12]] and own.bounds == [(0, 3)]
    marker = rows(load("deberta"), "hello", ["ship", "yes no"], 100).rows[0]
    assert marker.marks.labels.tolist() == [1, 3]


def test_a_word_without_tokens_is_no_word(load: Any) -> None:
    own = rows(load("bert"), "hello \u200d\ufe0f world", ["ship"], 100)
    assert [tuple(each) for each in own.words.tolist()] == [(0, 5), (9, 14)]


def test_a_word_that_fits_no_row_is_cut(load: Any) -> None:
    own = rows(load("deberta"), f"hello {'x' * 500} world", ["ship"], 40)
    assert max(map(len, own.rows)) == 40
    assert own.bounds[0][0] == 0 and own.bounds[-1][1] == 3 and len(own.words) == 3


@given(
    st.lists(st.integers(1, 9), max_size=60),
    st.integers(9, 40),
    st.integers(1, 30),
    st.integers(0, 30),
)
def test_windows_hold_what_fits_and_read_every_word(lengths: list[int], room: int, most: int, overlap: int) -> None:
    cut = windows(np.array(lengths, dtype=np.int64), room, most, overlap)
    assert {word for begin, end in cut for word in range(begin, end)} == set(range(len(lengths)))
    for begin, end in cut:
        assert sum(lengths[begin:end]) <= room and 0 < end - begin <= most
    for (begin, end), (after, last) in pairwise(cut):
        assert begin < after <= end < last
        shared = min(overlap, (end - begin) // 2)
        assert end - after == shared or sum(lengths[after - 1 : end + 1]) > room or end + 2 - after > most
        assert end - after <= shared


# -- candidates --------------------------------------------------------------------------------------------------------


def slow(found: Candidates, *, flat: bool, multi_label: bool) -> list[int]:
    """Every candidate against every better one."""
    kept: list[int] = []
    for number in np.lexsort((found.label, found.last, found.first, -found.score)).tolist():
        first, last = found.first[number], found.last[number]
        for other in kept:
            begin, end = found.first[other], found.last[other]
            apart = first > end or begin > last
            inside = (first <= begin and last >= end) or (begin <= first and end >= last)
            same = (first, last) == (begin, end)
            if (not multi_label) if same else not (apart or (inside and not flat)):
                break
        else:
            kept.append(number)
    return kept


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 2), st.integers(0, 9)), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_those_that_stay_are_those_that_clash_with_no_better_one(
    given: list[tuple[int, int, int, int]], flat: bool, multi_label: bool
) -> None:
    made = {(first, first + width, label): score / 10 for first, width, label, score in given}
    columns = np.array([*made], dtype=np.int64).reshape(-1, 3).T
    candidates = Candidates(columns[0], columns[1], columns[2], np.array([*made.values()], dtype=np.float32))
    kept = spans.chosen(candidates, 14, flat=flat, multi_label=multi_label)
    assert kept == slow(candidates, flat=flat, multi_label=multi_label)


def test_each_span_counts_in_the_row_that_has_more_of_its_neighbours() -> None:
    bounds = [(0, 8), (4, 12)]
    logits = [np.full((8, 3, 1), 5.0, dtype=np.float32), np.full((8, 3, 1), 6.0, dtype=np.float32)]
    kept = spans.candidates(bounds, logits, 0.5, token_level=False)
    assert sorted(zip(kept.first.tolist(), kept.last.tolist(), strict=True)) == [
        (first, first + width) for first in range(12) for width in range(3) if first + width < 12
    ]
    middle = (kept.first + kept.last) / 2
    assert ((kept.score > 0.995) == (middle >= 6)).all()


def test_words_of_two_rows_are_joined_before_spans_are_made_of_them() -> None:
    sure, never = 5.0, -5.0
    first, second = (np.full((6, 1, 3), never, dtype=np.float32) for _ in range(2))
    first[3, 0, 0] = first[3:, 0, 2] = sure
    second[:3, 0, 2] = second[2, 0, 1] = sure  # words 4 to 6 of the text, the last of which ends it
    kept = spans.candidates([(0, 6), (4, 10)], [first, second], 0.5, token_level=True)
    assert (kept.first.tolist(), kept.last.tolist()) == ([3], [6])
    none = spans.candidates([(0, 6), (4, 10)], [first, second], 0.999, token_level=True)
    assert none.first.size == 0


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_a_long_text_is_read_in_windows_and_nothing_of_it_is_lost_or_said_twice(load: Any, kind: str) -> None:
    model = load(kind)
    own = rows(model, LONG, LABELS, 60)
    assert len(own.rows) > 2 and max(map(len, own.rows)) <= 60
    (entities,) = found(model, [LONG], LABELS, threshold=0.0, max_seq_length=60)
    places = [(each.start or 0, each.end or 0) for each in entities]
    assert places == sorted(set(places)) and all(end <= start for (_, end), (start, _) in pairwise(places))
    assert all(LONG[each.start : each.end] == each.text for each in entities)
    assert [LONG[end:start] for (_, end), (start, _) in pairwise([(0, 0), *places, (len(LONG), 0)])] == [
        "",
        *[" "] * (len(places) - 1),
        "",
    ], "where everything is a candidate, no word is left out"


@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_texts_with_different_labels_in_one_batch_have_what_they_have_alone(load: Any, kind: str) -> None:
    model = load(kind)
    asked = [("hello world of ships", LABELS), (LONG, ["yes"]), ("x", [f"label {n}" for n in range(9)])]
    plans = [
        extract.plan(model, model.spec, ExtractRequest([Item(text=text)], ExtractParams(labels=labels)))
        for text, labels in asked
    ]
    together = [row for plan in plans for row in plan.rows]
    all_at_once = model.forward(together, {"spans": range(len(together))})["spans"]
    at = 0
    for plan in plans:
        for row in plan.rows:
            (alone,) = model.forward([row], {"spans": [0]})["spans"]
            assert np.abs(all_at_once[at] - alone).max() < 1e-4
            at += 1
    last = model.forward(together, {"spans": [len(together) - 1]})["spans"]
    assert len(last) == 1 and np.abs(last[0] - all_at_once[-1]).max() < 1e-4


def test_texts_without_words_have_no_entities(load: Any) -> None:
    assert found(load("deberta"), ["", " \n\t "], LABELS) == [[], []]
    assert [bool(own) for own in found(load("deberta"), ["", "hello ship"], LABELS, threshold=0.01)] == [False, True]


def test_labels_are_required_and_take_part_of_the_room(load: Any) -> None:
    model = load("deberta")
    with pytest.raises(InvalidInputError) as missing:
        found(model, ["hello"])
    assert missing.value.field == "params.labels"
    with pytest.raises(InputTooLongError) as long:
        found(model, ["hello"], [f"label {number}" for number in range(90)])
    assert (long.value.field, long.value.limit) == ("params.labels", int(400 * SHARE))
    with pytest.raises(InvalidInputError) as strange:
        found(model, ["hello"], ["ship", "\ud800"])
    assert strange.value.field == "params.labels[1]"
    with pytest.raises(InvalidInputError) as torn:
        found(model, ["hello", "\udfff"], ["ship"])
    assert torn.value.field == "items[1].text"


def test_options_of_other_kinds_are_refused(load: Any) -> None:
    for name, value in {"aggregation_strategy": "first", "top_k": 1, "hypothesis_template": "{}"}.items():
        with pytest.raises(InvalidInputError) as refused:
            found(load("bert"), ["hello"], LABELS, **{name: value})
        assert refused.value.field == f"params.options.{name}"


def test_more_scores_than_a_request_may_have_are_refused(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "MAX_SCORES", 2 * 4 * 3 - 1)
    assert found(load("bert"), ["hello"], LABELS) is not None
    with pytest.raises(InputTooLongError) as refused:
        found(load("bert"), ["hello world"], LABELS)
    assert refused.value.limit == 23


@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_more_candidates_than_can_be_chosen_from_are_refused_by_their_threshold(
    load: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MAX_CANDIDATES", 5000)
    assert found(load(kind), ["hello world ship"], LABELS, threshold=0.0)
    for texts in (["hello world " * 400], ["hello world ship"] * 1000):
        with pytest.raises(InvalidInputError) as refused:
            found(load(kind), texts, LABELS, threshold=0.0)
        assert (refused.value.field, refused.value.limit) == ("params.options.threshold", 5000)


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"fuse_layers": True}, "fuse_layers True"),
        ({"labels_encoder": "BAAI/bge-small-en-v1.5"}, "labels_encoder 'BAAI/bge-small-en-v1.5'"),
        ({"span_mode": "conv_share"}, "span_mode 'conv_share'"),
        ({"subtoken_pooling": "mean"}, "subtoken_pooling 'mean'"),
        ({"encoder_config": None}, "does not describe its encoder, random-init/deberta"),
        ({"encoder_config": {"model_type": "t5"}}, "A GLiNER on t5 is not computed here"),
        ({"encoder_config": {"model_type": ["bert"]}}, "is not computed here"),
        ({"ent_token": "<<E>>"}, "no token '<<E>>'"),
        ({"hidden_size": 33}, "rnn.lstm.weight_ih_l0 is not of the hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"max_len": 0}, "max_len"),
        ({"max_width": -1}, "max_width"),
        ({"span_mode": "token_level"}, "no tensor scorer."),
    ],
)
def test_what_is_not_computed_here_is_refused_when_it_is_loaded(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    folder = gliner_folder.make("deberta", tmp_path)
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelLoadFailedError) as refused:
        opened(folder)
    assert told in str(refused.value)


def test_a_torn_description_is_known_as_damaged(tmp_path: Path) -> None:
    (gliner_folder.make("deberta", tmp_path) / "gliner_config.json").write_bytes(b"")
    with pytest.raises(ModelLoadFailedError, match="cannot be used") as caught:
        opened(tmp_path)
    assert caught.value.details["reason"] == "corrupt"


def test_a_checkpoint_that_only_names_its_encoder_is_described_here(tmp_path: Path) -> None:
    folder = gliner_folder.make("deberta", tmp_path)
    path = folder / "gliner_config.json"
    written = json.loads(path.read_text())
    del written["encoder_config"]
    path.write_text(json.dumps(written | {"model_name": "microsoft/deberta-v3-large"}))
    config = Checkpoint(spec(folder), folder).architecture.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (1024, 24, 16)
    assert config.vocab_size == written["vocab_size"], "that of the table"
