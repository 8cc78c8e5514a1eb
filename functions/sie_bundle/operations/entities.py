"""Entities: from the logits of a text's tokens, window by window, to labelled spans of its characters.

Owns the joining of windows, what is a word, and the aggregation strategies, which are those of transformers'
TokenClassificationPipeline. numpy only, over all tokens of a text at once; what to ask for is ``extract``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from sie_bundle.engine.outputs import Floats
from sie_bundle.models.tokenization import Tokenizer, Windows
from sie_bundle.operations.classification import softmax
from sie_sdk.types import Entity

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS = get_args(Aggregation)

OUTSIDE = "O"
"""The label of what is no entity."""

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class Scheme(NamedTuple):
    """What a model's labels mean. Arrays have one entry per label."""

    labels: tuple[str, ...]
    names: tuple[str, ...]
    """The kinds of entities, ``O`` included: labels without the letter that says where in an entity a token stands."""
    name: Numbers
    """A label's place in ``names``."""
    begins: Flags
    """A token with this label does not continue the entity before it."""
    ends: Flags
    """The token behind it does not continue its entity."""

    @property
    def outside(self) -> Flags:
        return np.array([label == OUTSIDE for label in self.labels])


@lru_cache(maxsize=256)
def scheme(labels: tuple[str, ...]) -> Scheme:
    """Read labels as B-, I- and O; with E-, L- (last) and S-, U- (single) beside them; or as plain names.

    Neighbouring tokens with one plain name, or with I- alone, are one entity.
    """
    lettered = any(label.startswith(("B-", "I-")) for label in labels)
    letters = "BIELSU" if lettered else ""
    split = [(label[0], label[2:]) if label[:1] in letters and label[1:2] == "-" else ("", label) for label in labels]
    names = tuple(dict.fromkeys(name for _, name in split))
    return Scheme(
        labels,
        names,
        np.array([names.index(name) for _, name in split], dtype=np.int64),
        np.array([letter in ("B", "S", "U") for letter, _ in split]),
        np.array([letter in ("E", "L", "S", "U") for letter, _ in split]),
    )


def continuing(text: str, windows: Windows, tokenizer: Tokenizer) -> Flags:
    """[n]: whether a token is part of the word before it.

    Where the vocabulary marks such tokens (``##``), a token whose length is not that of its characters; else one with
    no space at or before its first character.
    """
    starts, stops = windows.spans[:, 0], windows.spans[:, 1]
    if tokenizer.subword_prefix:
        found: Flags = tokenizer.token_lengths[windows.ids] != stops - starts
    else:
        space = np.append(np.frombuffer(text.encode("utf-32-le"), dtype="<u4") == ord(" "), False)
        found = (starts > 0) & ~space[starts - 1] & ~space[starts]
    return found if tokenizer.unknown is None else found & (windows.ids != tokenizer.unknown)


def joined(windows: Windows, outputs: Sequence[Floats], continues: Flags, outside: Flags) -> Floats:
    """The logits [n, labels] of a text's tokens, each from one window.

    In what two windows share, those before a seam are the first window's: each token is taken from where it has more
    of its neighbours. So an entity that both windows have is there once, and one that is longer than what they share
    is whole.
    """
    first = windows.opening
    own = [logits[first : first + stop - start] for logits, (start, stop) in zip(outputs, windows.bounds, strict=True)]
    seams = [0]
    for left, right, (_, stop), (start, _) in zip(own, own[1:], windows.bounds, windows.bounds[1:], strict=False):
        shared = stop - start
        inside = ~(outside[left[len(left) - shared :].argmax(axis=1)] & outside[right[:shared].argmax(axis=1)])
        seams.append(start + seam(inside, continues[start:stop]))
    seams.append(len(windows.ids))
    parts = [
        logits[begin - start : end - start]
        for logits, (start, _), begin, end in zip(own, windows.bounds, seams, seams[1:], strict=False)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def seam(inside: Flags, continues: Flags) -> int:
    """Where the second window takes over in what two windows share: so many tokens are the first one's.

    The place nearest to the middle at which neither window has an entity across it; else that where a word begins;
    else the middle. Only the middle half is tried, so that each token has a quarter of the shared ones on both sides.

    Args:
        inside: for each shared token, whether one of the windows has it in an entity.
        continues: whether it is part of the word before it.
    """
    size = len(inside)
    places = np.arange(max(1, size // 4), size - size // 4)
    in_entity = np.append(False, inside[1:] & inside[:-1])[:size]
    for wrong in (continues | in_entity, continues):
        free = places[~wrong[places]]
        if len(free):
            return int(free[np.abs(free - size // 2).argmin()])
    return size // 2


class Labelled(NamedTuple):
    """Pieces of a text in order: tokens, words or entities. ``number`` is a label's or a name's."""

    number: Numbers
    score: Floats
    start: Numbers
    stop: Numbers


def words(scores: Floats, spans: Numbers, continues: Flags, aggregation: Aggregation) -> Labelled:
    """Each word with the label of its first token, of its surest token, or of the average of its tokens.

    Args:
        scores: [n, labels], probabilities.
        spans: [n, 2], first character and the one behind the last.
        aggregation: "first", "max" or "average"; with others every token is by itself.
    """
    if aggregation in ("none", "simple"):
        return Labelled(scores.argmax(axis=1), scores.max(axis=1), spans[:, 0], spans[:, 1])
    begins = ~continues
    begins[0] = True
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(scores))
    if aggregation == "average":
        chosen = _means(scores, firsts)
    elif aggregation == "first":
        chosen = scores[firsts]
    else:
        best = scores.max(axis=1)
        word = np.repeat(np.arange(len(firsts)), sizes)
        surest = np.flatnonzero(best == np.maximum.reduceat(best, firsts)[word])
        chosen = scores[surest[np.unique(word[surest], return_index=True)[1]]]
    return Labelled(chosen.argmax(axis=1), chosen.max(axis=1), spans[firsts, 0], spans[firsts + sizes - 1, 1])


def grouped(pieces: Labelled, labels: Scheme) -> Labelled:
    """Neighbours of one entity in one, with the mean of their scores; ``number`` is that of a name afterwards."""
    name = labels.name[pieces.number]
    begins = np.append(
        True, (name[1:] != name[:-1]) | labels.begins[pieces.number[1:]] | labels.ends[pieces.number[:-1]]
    )
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(name))
    score = _means(pieces.score, firsts)
    return Labelled(name[firsts], score, pieces.start[firsts], pieces.stop[firsts + sizes - 1])


def _means(values: Floats, firsts: Numbers) -> Floats:
    """The mean of each stretch of rows; ``firsts`` are where they begin."""
    sizes = np.diff(firsts, append=len(values)).astype(np.float32)
    sums: Floats = np.add.reduceat(values, firsts, dtype=np.float32)
    return (sums.T / sizes).T


def entities(
    text: str,
    windows: Windows,
    outputs: Sequence[Floats],
    tokenizer: Tokenizer,
    labels: Scheme,
    aggregation: Aggregation,
    *,
    threshold: float = 0.0,
    wanted: frozenset[str] | None = None,
) -> list[Entity]:
    """The entities of one text by where they start; none lies over another, unless the strategy is "none".

    Args:
        outputs: for each of the windows' rows, the logits [length, labels] of all its tokens.
        threshold: entities with a lower score are left out.
        wanted: the names of those to keep; None: all.
    """
    if not windows.rows:
        return []
    continues = continuing(text, windows, tokenizer)
    logits = joined(windows, outputs, continues, labels.outside)
    pieces = words(softmax(logits), windows.spans, continues, aggregation)
    kinds = labels.names
    keeps = [name != OUTSIDE and (wanted is None or name in wanted) for name in labels.names]
    if aggregation == "none":
        kinds, keeps = labels.labels, [keeps[number] for number in labels.name]
    else:
        pieces = grouped(pieces, labels)
    kept = np.array(keeps)[pieces.number] & (pieces.score >= threshold)
    made: list[Entity] = []
    columns = (column[kept].tolist() for column in pieces)
    for number, score, start, stop in zip(*columns, strict=True):
        if (entity := _cut(text, kinds[number], score, start, stop)) is None:
            continue
        # Tokens that are parts of one character may have different labels: the surer one keeps the character.
        if aggregation != "none" and made and made[-1].end is not None and start < made[-1].end:
            if score <= made[-1].score:
                continue
            made.pop()
        made.append(entity)
    return made


def _cut(text: str, label: str, score: float, start: int, stop: int) -> Entity | None:
    """The entity without the white space around it, which some tokenizers count to a word; None if it is all that."""
    piece = text[start:stop]
    if not (bare := piece.strip()):
        return None
    start += len(piece) - len(piece.lstrip())
    return Entity(bare, label, score, start, start + len(bare))
