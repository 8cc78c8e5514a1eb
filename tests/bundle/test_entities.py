"""Entities: label schemes, words, groups, and texts in windows, whose entities are those of the whole text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.row import row
from sie_bundle.models.tokenization import Tokenizer, Windows
from sie_bundle.operations.entities import Flags, Scheme, continuing, entities, grouped, joined, scheme, seam, words
from sie_sdk.types import Entity

NER = scheme(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
Found = list[tuple[str, str, int, int]]


def tokenizer(*vocabulary: str) -> Tokenizer:
    """WordPiece of these tokens, without special ones."""
    numbers = {token: number for number, token in enumerate(("[UNK]", *vocabulary))}
    made = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Tokenizer(made)


LETTERS = tokenizer("a", "b", "##a", "##b")


def sure(labels: list[str], of: Scheme, score: float = 5.0) -> Floats:
    """Logits [tokens, labels] with one label each."""
    return np.float32(score) * np.eye(len(of.labels), dtype=np.float32)[[of.labels.index(label) for label in labels]]


def found(text: str, labels: list[str], of: Scheme = NER, aggregation: str = "simple", **choices: object) -> Found:
    """The entities when the tokens of a text have these labels."""
    (windows,) = LETTERS.windows([text], 512, 0)
    assert len(windows.ids) == len(labels)
    made = entities(text, windows, [sure(labels, of)], LETTERS, of, aggregation, **choices)  # type: ignore[arg-type]
    return plain(made)


def plain(made: list[Entity]) -> Found:
    return [(entity.text, entity.label, entity.start or 0, entity.end or 0) for entity in made]


# -- labels and groups -------------------------------------------------------------------------------------------------


def test_a_b_label_begins_an_entity_and_i_labels_continue_it() -> None:
    assert found("a b a b", ["B-PER", "I-PER", "B-PER", "I-LOC"]) == [
        ("a b", "PER", 0, 3),
        ("a", "PER", 4, 5),
        ("b", "LOC", 6, 7),
    ]


def test_an_entity_ends_where_nothing_is_found() -> None:
    assert found("a b a", ["I-PER", "O", "I-PER"]) == [("a", "PER", 0, 1), ("a", "PER", 4, 5)]


def test_plain_labels_join_with_their_like_and_keep_their_dashes() -> None:
    plainly = scheme(("O", "date-time", "E-mail"))
    assert found("a b a", ["date-time", "date-time", "E-mail"], plainly) == [
        ("a b", "date-time", 0, 3),
        ("a", "E-mail", 4, 5),
    ]


def test_last_and_single_labels_end_an_entity() -> None:
    lettered = scheme(("O", "B-X", "I-X", "L-X", "U-X"))
    assert found("a b a b a", ["B-X", "I-X", "L-X", "I-X", "U-X"], lettered) == [
        ("a b a", "X", 0, 5),
        ("b", "X", 6, 7),
        ("a", "X", 8, 9),
    ]


def test_without_a_strategy_each_token_is_returned_with_its_own_label() -> None:
    assert found("ab b", ["B-PER", "I-PER", "O"], aggregation="none") == [("a", "B-PER", 0, 1), ("b", "I-PER", 1, 2)]


def test_the_score_of_an_entity_is_the_mean_of_its_tokens() -> None:
    text = "a b"
    (windows,) = LETTERS.windows([text], 512, 0)
    logits = np.log(np.array([[0.2, 0.8, 0, 0, 0], [0.4, 0, 0.6, 0, 0]], dtype=np.float32) + 1e-9)
    (entity,) = entities(text, windows, [logits], LETTERS, NER, "simple")
    assert entity.score == pytest.approx(0.7, abs=1e-6)
    assert entities(text, windows, [logits], LETTERS, NER, "simple", threshold=0.71) == []


def test_only_wanted_names_are_kept_under_every_strategy() -> None:
    labels = ["B-PER", "O", "B-LOC"]
    assert found("a b a", labels, wanted=frozenset({"LOC"})) == [("a", "LOC", 4, 5)]
    assert found("a b a", labels, aggregation="none", wanted=frozenset({"LOC"})) == [("a", "B-LOC", 4, 5)]
    assert found("a b a", labels, wanted=frozenset()) == []


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "label", "score"),
    [("first", "B-PER", 0.5), ("max", "I-LOC", 0.9), ("average", "B-LOC", 0.4)],
)
def test_a_word_has_the_label_of_its_first_its_surest_or_its_average_token(
    aggregation: str, label: str, score: float
) -> None:
    text = "abb"
    (windows,) = LETTERS.windows([text], 512, 0)
    likely = [[0.05, 0.5, 0.0, 0.45, 0.0], [0.1, 0.15, 0.0, 0.75, 0.0], [0.1, 0.0, 0.0, 0.0, 0.9]]
    scores = np.array(likely, dtype=np.float32)
    pieces = words(scores, windows.spans, np.array([False, True, True]), aggregation)  # type: ignore[arg-type]
    assert [NER.labels[number] for number in pieces.number] == [label]
    assert pieces.score[0] == pytest.approx(score, abs=1e-6)
    assert (pieces.start[0], pieces.stop[0]) == (0, 3)


@given(st.data())
def test_words_are_what_a_plain_loop_over_the_tokens_makes(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    continues = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    # Few different numbers, so that equal ones are common.
    scores = random.integers(1, 4, size=(size, 5)).astype(np.float32) / 4
    spans = np.array([[number, number + 1] for number in range(size)])
    groups: list[list[int]] = []
    for number in range(size):
        if groups and continues[number]:
            groups[-1].append(number)
        else:
            groups.append([number])
    expected = {
        "first": [scores[group[0]] for group in groups],
        "max": [scores[max(group, key=lambda number: scores[number].max())] for group in groups],
        "average": [scores[group].mean(axis=0) for group in groups],
    }
    for aggregation, rows in expected.items():
        pieces = words(scores, spans, continues, aggregation)  # type: ignore[arg-type]
        assert pieces.score.tolist() == pytest.approx([row.max() for row in rows], abs=1e-6)
        assert [row[number] for row, number in zip(rows, pieces.number, strict=True)] == pytest.approx(pieces.score)
        assert list(zip(pieces.start, pieces.stop, strict=True)) == [(group[0], group[-1] + 1) for group in groups]
        assert len(grouped(pieces, NER).score) <= len(groups)


def test_a_token_continues_a_word_when_the_vocabulary_marks_it() -> None:
    (windows,) = LETTERS.windows(["ab a? b"], 512, 0)
    assert windows.ids.tolist() == [1, 4, 1, 0, 2]
    # The question mark is unknown, and so a word of its own however long its token is.
    assert continuing("ab a? b", windows, LETTERS).tolist() == [False, True, False, False, False]


def test_without_marks_a_token_continues_a_word_unless_there_is_a_space() -> None:
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate("ab ?")}, []))
    own, text = Tokenizer(made), "ab? b"
    (windows,) = own.windows([text], 512, 0)
    assert continuing(text, windows, own).tolist() == [False, True, True, False, False]


def test_white_space_around_an_entity_is_left_out_and_alone_is_none() -> None:
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate("ab \n")}, []))
    own, text = Tokenizer(made), " \na \nb"
    (windows,) = own.windows([text], 512, 0)
    labels = ["B-PER", "I-PER", "I-PER", "B-LOC", "B-LOC", "I-LOC"]
    assert plain(entities(text, windows, [sure(labels, NER)], own, NER, "simple")) == [
        ("a", "PER", 2, 3),
        ("b", "LOC", 5, 6),
    ]


def test_of_two_entities_in_one_character_the_surer_one_is_kept() -> None:
    made = tokenizers.Tokenizer(models.WordLevel({"1": 0, "2": 1, "x": 2}, unk_token="x"))
    made.normalizer = normalizers.Replace("½", "12")
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    own, text = Tokenizer(made), "½"
    (windows,) = own.windows([text], 512, 0)
    assert windows.spans.tolist() == [[0, 1], [0, 1]]
    logits = np.concatenate([sure(["B-PER"], NER, 3.0), sure(["B-LOC"], NER, 4.0)])
    assert plain(entities(text, windows, [logits], own, NER, "simple")) == [("½", "LOC", 0, 1)]
    assert len(entities(text, windows, [logits], own, NER, "none")) == 2


# -- windows -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 20))
def test_windows_hold_every_token_and_share_what_was_asked_for(size: int, room: int, overlap: int) -> None:
    (windows,) = LETTERS.windows(["a " * size], room, overlap)
    assert len(windows.ids) == size
    assert all(
        len(own) == stop - start <= room for own, (start, stop) in zip(windows.rows, windows.bounds, strict=True)
    )
    assert all(
        own.ids.tolist() == windows.ids[start:stop].tolist()
        for own, (start, stop) in zip(windows.rows, windows.bounds, strict=True)
    )
    assert {number for bounds in windows.bounds for number in range(*bounds)} == set(range(size))
    shared = [stop - start for (_, stop), (start, _) in zip(windows.bounds, windows.bounds[1:], strict=False)]
    assert set(shared) <= {min(overlap, room // 2)}
    assert len(windows.rows) == (1 if 0 < size <= room else 0 if not size else len(shared) + 1)


def test_every_window_has_the_special_tokens(tiny_folder: Path) -> None:
    own = Tokenizer.load(tiny_folder)
    empty, windows = own.windows(["", "hello world hello"], 4, 1)
    assert empty.rows == [] and len(empty.ids) == 0
    assert [own.ids.tolist() for own in windows.rows] == [[2, 4, 5, 3], [2, 5, 4, 3]]
    assert (windows.opening, windows.bounds) == (1, [(0, 2), (1, 3)])
    assert windows.spans.tolist() == [[0, 5], [6, 11], [12, 17]]


REACH = 3
"""How many tokens to either side the local model looks at."""


def local(ids: list[int], of: Scheme) -> Floats:
    """Logits by a token and those at most `REACH` from it; what is not there counts like a token of its own."""
    padded = [0] * REACH + ids + [0] * REACH
    seeds = [hash(tuple(padded[number : number + 2 * REACH + 1])) for number in range(len(ids))]
    return np.array([np.random.RandomState(seed % 2**32).randn(len(of.labels)) for seed in seeds], dtype=np.float32)


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "abba"]), min_size=24, max_size=40),
    st.integers(8 * REACH, 40),
    st.integers(4 * REACH, 20),
    st.sampled_from(["none", "simple", "first", "average", "max"]),
)
def test_a_text_in_windows_has_the_entities_of_the_whole_text(
    pieces: list[str], room: int, overlap: int, aggregation: str
) -> None:
    """A model that looks no further than a quarter of what windows share sees the same in both; the entities too."""
    text = " ".join(pieces)
    (whole,), (windows,) = LETTERS.windows([text], 10_000, 0), LETTERS.windows([text], room, overlap)
    if len(windows.rows) == 1:
        return
    made = [
        entities(text, own, [local(row.ids.tolist(), NER) for row in own.rows], LETTERS, NER, aggregation)  # type: ignore[arg-type]
        for own in (whole, windows)
    ]
    assert made[0] == made[1]
    if aggregation != "none":
        ends = [entity.end or 0 for entity in made[1]]
        assert all(end <= (after.start or 0) for end, after in zip(ends, made[1][1:], strict=False))


def in_windows(labels: list[list[str]], overlap: int) -> Found:
    """The entities when windows of one letter per token say these labels."""
    room, step = len(labels[0]), len(labels[0]) - overlap
    size = step * (len(labels) - 1) + len(labels[-1])
    text = " ".join("ab"[number % 2] for number in range(size))
    (windows,) = LETTERS.windows([text], room, overlap)
    assert [stop - start for start, stop in windows.bounds] == [len(own) for own in labels]
    return plain(entities(text, windows, [sure(own, NER) for own in labels], LETTERS, NER, "simple"))


def test_what_both_windows_find_is_there_once() -> None:
    first = ["O", "O", "O", "O", "B-PER", "I-PER", "O", "O"]
    second = ["B-PER", "I-PER", "O", "O", "O", "O", "O", "O"]
    assert in_windows([first, second], 4) == [("a b", "PER", 8, 11)]


def test_an_entity_longer_than_what_windows_share_is_whole() -> None:
    labels = [["O", "B-PER", *["I-PER"] * 6], ["I-PER"] * 8, ["I-PER", "I-PER", "I-PER", "O"]]
    assert in_windows(labels, 2) == [(" ".join("ba" * 7), "PER", 2, 29)]


def test_what_a_window_finds_at_its_border_gives_way_to_the_other_window() -> None:
    # The first window's last token and the second one's first are what the other has neighbours for.
    first = ["O"] * 7 + ["B-LOC"]
    second = ["B-PER"] + ["O"] * 7
    assert in_windows([first, second], 4) == []


def test_windows_that_disagree_do_not_cut_an_entity() -> None:
    # The seam would be in the middle of the eight shared tokens, where the first window has an entity.
    first = ["O"] * 8 + ["O", "O", "B-PER", "I-PER", "I-PER", "O", "O", "O"]
    assert in_windows([first, ["O"] * 16], 8) == [("a b a", "PER", 20, 25)]
    first = ["O"] * 8 + ["O", "O", "O", "B-PER", "I-PER", "I-PER", "O", "O"]
    assert in_windows([first, ["O"] * 16], 8) == []
    # Where an entity is all there is, the middle it is.
    first = ["O"] * 8 + ["B-PER"] + ["I-PER"] * 7
    assert in_windows([first, ["O"] * 16], 8) == [("a b a b", "PER", 16, 23)]


@given(st.integers(0, 40), st.data())
def test_a_seam_is_in_the_middle_half_and_cuts_nothing_it_can_help(size: int, data: st.DataObject) -> None:
    flags = st.lists(st.booleans(), min_size=size, max_size=size)
    inside, continues = np.array(data.draw(flags), dtype=bool), np.array(data.draw(flags), dtype=bool)
    at = seam(inside, continues)
    assert size // 4 <= at <= size - size // 4
    places = range(max(1, size // 4), size - size // 4)

    def cuts(place: int) -> bool:
        return bool(continues[place] or (inside[place] and inside[place - 1]))

    if any(not cuts(place) for place in places):
        assert not cuts(at)
        assert abs(at - size // 2) == min(abs(place - size // 2) for place in places if not cuts(place))
    elif any(not continues[place] for place in places):
        assert not continues[at]


def test_tokens_of_one_window_are_taken_as_they_are() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(4, 3)
    windows = Windows(np.arange(2), np.array([[0, 1], [1, 2]]), [row([7, 0, 1, 8])], [(0, 2)], 1)
    flags: Flags = np.array([True, False, False])
    assert joined(windows, [logits], np.array([False, False]), flags).tolist() == logits[1:3].tolist()
