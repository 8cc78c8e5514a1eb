"""Rows with the caller's labels before a text's words: what GLiNER (2311.08526) reads. No torch here.

A row is ``[CLS] <<ENT>> label <<ENT>> label <<SEP>> word word [SEP]``; its `Marks` say where labels and words are. Owns
what a word is, and the windows of a text that does not fit one row. Scores are ``span_head``'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_bundle.engine.row import Ids, Marks, Row
from sie_bundle.models import gliner
from sie_bundle.models.family import GLINER
from sie_bundle.models.gliner import Config
from sie_bundle.models.tokenization import ITEM, Name, Tokenizer, end_token
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import InputTooLongError

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""Letters and digits, also with hyphens and underscores between them; any other character is a word by itself."""

SHARE = 0.75
"""The most of a row that labels may take, so that a text has not to be read a few words at a time."""


class Labelled(NamedTuple):
    """A text in rows that all have the same labels in front."""

    words: npt.NDArray[np.int64]
    """[n, 2]: the first character of each word, and the one behind its last."""
    rows: list[Row]
    """At least one, unless the text has no words."""
    bounds: list[tuple[int, int]]
    """For each row, which of the words it reads: the first, and the one behind the last."""


class LabelTokenizer(Tokenizer):
    """A tokenizer of a model that reads labels before a text, as its ``config`` says."""

    config: Config

    def labelled(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        max_length: int,
        overlap: int,
        *,
        most: int = 1 << 32,
        name: Name = ITEM,
    ) -> list[Labelled]:
        """Each text in rows of at most ``max_length`` tokens, and no more words than the model was trained on.

        Neighbouring rows share ``overlap`` words, or as many as the longest span has, but half of what a row holds at
        most. A word that does not fit a row is cut. What the tokenizer makes no token of, a variation selector for
        instance, is no word.

        Args:
            most: windows that a text may take. One that has more words than fit there is not tokenized.
            name: what errors call the text of that number.

        Raises:
            InputTooLongError: the labels take more than `SHARE` of a row (names ``params.labels``); or see ``most``.
            InvalidInputError: a text or a label is not valid Unicode.
        """
        start, label_marks, stop = self._frame_of(labels)
        room = max_length - len(start) - len(stop)
        if room < max_length * (1 - SHARE):
            raise InputTooLongError(
                f"The labels take {max_length - room} tokens of the {max_length} that the model reads at a time.",
                field="params.labels",
                limit=int(max_length * SHARE),
                hint="Send fewer or shorter labels at once.",
            )
        made, overlap = [], max(overlap, self.config.max_width)
        found = [_words_of(text, most * self.config.max_len, name(i)) for i, text in enumerate(texts)]
        words = [[text[begin:end] for begin, end in own] for text, own in zip(texts, found, strict=True)]
        for places_of, encoding in zip(found, self._words(words, name), strict=True):
            places = np.array(encoding.word_ids, dtype=np.int64)
            first = np.flatnonzero(np.diff(places, prepend=-1))
            ids = np.array(encoding.ids, dtype=np.int64)
            lengths = np.minimum(np.diff(first, append=len(ids)), room)
            spans = np.array(places_of, dtype=np.int64).reshape(-1, 2)[places[first]]
            bounds = windows(lengths, room, self.config.max_len, overlap)
            rows = []
            for begin, end in bounds:
                kept = [ids[first[word] : first[word] + lengths[word]] for word in range(begin, end)]
                own = np.cumsum(lengths[begin:end]) - lengths[begin:end] + len(start)
                joined = np.concatenate([start, *kept, stop])
                rows.append(Row(joined, len(joined), len(joined), Marks(label_marks, own)))
            made.append(Labelled(spans, rows, bounds))
        return made

    def _frame_of(self, labels: Sequence[str]) -> tuple[Ids, Ids, Ids]:
        """What stands before the words, where in it the labels are, and what stands behind the words."""
        encoding = self._tokenizer.encode("a")
        ids = encoding.ids
        marker, parts, places = self.id(self.config.ent_token), ids[: self._opening], []
        for own in self._words([[label] for label in labels], "params.labels[{}]".format):
            places.append(len(parts) + (0 if self.config.embed_ent_token else 1))
            parts += [marker, *own.ids]
        start = np.array([*parts, self.id(self.config.sep_token)], dtype=np.int64)
        return start, np.array(places, dtype=np.int64), np.array(ids[len(ids) - self._closing :], dtype=np.int64)

    def _words(self, texts: Sequence[Sequence[str]], name: Name = ITEM) -> list[tokenizers.Encoding]:
        return self._encodings(texts, special=False, words=True, name=name)


def _words_of(text: str, most: int, name: str) -> list[tuple[int, int]]:
    """Where each word begins and ends. Others may run meanwhile, as they may not while a list is made of matches."""
    found = [each.span() for each in islice(WORD.finditer(text), most + 1)]
    if len(found) > most:
        raise InputTooLongError(
            f"{name} has over {most} words.", field=name, limit=most, hint="Send fewer or shorter texts at once."
        )
    return found


def windows(lengths: Ids, room: int, most: int, overlap: int) -> list[tuple[int, int]]:
    """Words in windows of at most ``room`` tokens and ``most`` words, from the first to the last.

    Args:
        lengths: [n], each word's tokens, at most ``room``.
        overlap: words that neighbours share, but half of what the first of them has at most, and none that would leave
            no room for the word behind them.
    """
    bounds, begin = [], 0
    behind = np.concatenate([[0], np.cumsum(lengths)])
    while begin < len(lengths):
        end = int(np.searchsorted(behind, behind[begin] + room, side="right")) - 1
        end = min(end, begin + most)
        bounds.append((begin, end))
        if end == len(lengths):
            break
        # Not so far back that the next word would not fit behind what is read again.
        fits = max(int(np.searchsorted(behind, behind[end + 1] - room)), end + 1 - most)
        begin = max(end - min(overlap, (end - begin) // 2), fits)
    return bounds


def load(spec: ModelSpec, folder: Path, elsewhere: Path | None = None) -> Tokenizer:
    """The tokenizer of a model's folder.

    Args:
        elsewhere: the folder of its tokenizer.json, if that is another.

    Raises:
        ModelLoadFailedError: see `Tokenizer.load`.
    """
    if spec.family != GLINER:
        return Tokenizer.load(elsewhere or folder, end_token(spec), spec.truncation_side)
    made = LabelTokenizer.load(elsewhere or folder)
    made.config = gliner.read(folder)
    return made
