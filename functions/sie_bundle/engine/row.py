"""A row: what the engine is given of a text, token ids and what they stand for.

Where texts become rows is ``models.tokenization``. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class Marks(NamedTuple):
    """Which tokens of a row stand for more than themselves, in a row that has labels before a text's words."""

    labels: Ids
    """The marker before each label."""
    words: Ids
    """The first token of each word."""


class Row(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One row of the packed batch: a text, or a pair of texts, with its special tokens."""

    ids: Ids
    second: int
    """Where a pair's second text begins; the length, if there is none."""
    seen: int
    """So many tokens from the first are attended to; those behind, a query's augmentation, only look."""
    marks: Marks | None = None

    def __len__(self) -> int:
        return len(self.ids)


def row(ids: Sequence[int] | Ids) -> Row:
    """A single text's row."""
    return Row(np.asarray(ids, np.int64), len(ids), len(ids))
