"""Spans: from the scores of labels over spans of a text, row by row, to entities (GLiNER, 2311.08526).

Owns the joining of rows, what is a candidate, and which of several that overlap stays. numpy only; what is asked for is
``extract``'s, what scores mean ``models.span_head``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_bundle.engine.outputs import Floats
from sie_bundle.models.label_tokenizer import Labelled
from sie_bundle.operations.classification import sigmoid
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Entity

Numbers = npt.NDArray[np.int64]

MAX_CANDIDATES = 1 << 20
"""Of one request: some 150 MB, and four seconds until those that stay are chosen. Where every word may begin and end an
entity, they grow with the square of a text."""


class Candidates(NamedTuple):
    """Spans of a text's words with a label each. Arrays of one length."""

    first: Numbers
    last: Numbers
    """The last word, not the one behind it."""
    label: Numbers
    score: Floats


_NO_NUMBERS = np.empty(0, dtype=np.int64)
_NONE = Candidates(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.empty(0, dtype=np.float32))


def candidates(
    bounds: Sequence[tuple[int, int]],
    outputs: Sequence[Floats],
    threshold: float,
    *,
    token_level: bool,
    already: int = 0,
) -> Candidates:
    """What reaches the threshold in a text.

    Args:
        bounds: which words each of the text's rows reads.
        outputs: of `span_head.spans`, one for each row.
        token_level: which of the two kinds they are.
        already: candidates of other texts of the request.

    Raises:
        InvalidInputError: these and the others are more than `MAX_CANDIDATES`.
    """
    parts, count = [_NONE], already
    for part in (of_words if token_level else of_spans)(bounds, outputs, threshold) if outputs else ():
        parts.append(part)
        count += len(part.score)
        if count > MAX_CANDIDATES:
            raise InvalidInputError(
                f"More spans reach a threshold of {threshold:g} than can be chosen from.",
                field="params.options.threshold",
                limit=MAX_CANDIDATES,
                hint="Ask for a higher one, or send fewer or shorter texts, or fewer labels, at once.",
            )
    return Candidates(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def entities(
    text: str, read: Labelled, found: Candidates, labels: Sequence[str], *, flat: bool, multi_label: bool
) -> list[Entity]:
    """A text's entities, by where they begin.

    Args:
        found: its `candidates`.
        flat: none lies over another; else one may lie inside another.
        multi_label: the same span may have several labels.
    """
    kept = chosen(found, len(read.words), flat=flat, multi_label=multi_label)
    made = []
    for number in sorted(kept, key=lambda number: int(found.first[number])):
        start, stop = int(read.words[found.first[number], 0]), int(read.words[found.last[number], 1])
        made.append(Entity(text[start:stop], labels[found.label[number]], float(found.score[number]), start, stop))
    return made


def seams(bounds: Sequence[tuple[int, int]]) -> list[float]:
    """Where one row's words end and the next one's begin to count: the middle of what both read."""
    between = [(start + stop) / 2 for (_, stop), (start, _) in pairwise(bounds)]
    return [float("-inf"), *between, float("inf")]


def of_spans(bounds: Sequence[tuple[int, int]], outputs: Sequence[Floats], threshold: float) -> Iterator[Candidates]:
    """The spans whose score reaches the threshold, row by row, each from that in which it has more of its neighbours.

    Args:
        outputs: for each row, logits [words, width, labels].
    """
    cuts = seams(bounds)
    for (start, stop), logits, low, high in zip(bounds, outputs, cuts, cuts[1:], strict=False):
        scores = sigmoid(logits)
        first, width, label = np.nonzero(scores >= threshold)
        middle = start + first + width / 2
        own = (first + width < stop - start) & (low <= middle) & (middle < high)
        first, width, label = first[own], width[own], label[own]
        yield Candidates(start + first, start + first + width, label, scores[first, width, label])


def of_words(bounds: Sequence[tuple[int, int]], outputs: Sequence[Floats], threshold: float) -> Iterator[Candidates]:
    """The spans whose first, last and inner words all reach the threshold, with the lowest of these scores.

    Args:
        outputs: for each row, logits [words, labels, 3]: first, last and inside.
    """
    cuts = [0, *(int(cut) for cut in seams(bounds)[1:-1]), bounds[-1][1]]
    rows = zip(outputs, bounds, cuts, cuts[1:], strict=False)
    scores = sigmoid(np.concatenate([own[low - start : high - start] for own, (start, _), low, high in rows]))
    for label in range(scores.shape[1]):
        begins, ends, inside = scores[:, label].T
        within = inside >= threshold
        edges = np.flatnonzero(np.diff(np.pad(within, 1).astype(np.int8)))
        for low, high in edges.reshape(-1, 2):
            for first in low + np.flatnonzero(begins[low:high] >= threshold):
                last = first + np.flatnonzero(ends[first:high] >= threshold)
                lowest = np.minimum.accumulate(inside[first:high])[last - first]
                score = np.minimum(np.minimum(lowest, ends[last]), begins[first])
                yield Candidates(np.full(len(last), first), last, np.full(len(last), label), score)


def chosen(found: Candidates, words: int, *, flat: bool, multi_label: bool) -> list[int]:
    """The candidates that stay, best first: each but those that clash with a better one.

    Two of the same span clash unless there may be several labels; two others if they overlap, and of those that are not
    ``flat`` only if neither lies inside the other.
    """
    order = np.lexsort((found.label, found.last, found.first, -found.score))
    kept: list[int] = []
    taken: set[tuple[int, int]] = set()
    # By word: whether a span lies over it; the first word of spans that end there; the last of those that begin there.
    over = np.zeros(words, dtype=np.bool_)
    begins, ends = np.full(words, words), np.full(words, -1)
    for number in order.tolist():
        first, last = int(found.first[number]), int(found.last[number])
        if (first, last) in taken:
            if multi_label:
                kept.append(number)
            continue
        if flat:
            if over[first : last + 1].any():
                continue
            over[first : last + 1] = True
        elif (begins[first:last] < first).any() or (ends[first + 1 : last + 1] > last).any():
            continue
        begins[last], ends[first] = min(begins[last], first), max(ends[first], last)
        taken.add((first, last))
        kept.append(number)
    return kept
