"""What a batch costs a device: seconds = start + a * tokens + b * sum of squared lengths, fitted to what was measured.

Linear layers cost by the token, attention by the square of a text's length. Owns the fit, by weighted least squares;
not the batches (``batch``) nor the clock (``executor``). Pure: the readings are handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FORGET = 0.98
"""What a reading weighs after another one: a machine that became slower is believed after some fifty batches."""
OFTEN, SELDOM = 8, 16
"""The first so many readings are fitted one by one, then that many together: a fit is a twentieth of a short batch."""
ALIKE = 1e-9
"""What is left of an equation, of 1, that says nothing which others have not said."""
QUICK_S = 0.05
"""Seconds. A batch that takes no longer may be of more than a few tokens: what Python does around a pass is done for
all. Measured with AMX, see docs/engine.md."""


class Reading(NamedTuple):
    """One forward pass."""

    tokens: int
    squares: int
    """The sum of the squared lengths of its rows."""
    seconds: float


def reading(lengths: Sequence[int], seconds: float) -> Reading:
    """The reading of a pass over rows of those lengths."""
    return Reading(sum(lengths), sum(length * length for length in lengths), seconds)


class Fit:
    """The cost of one model on one device, from all readings so far.

    Least squares on relative errors, so that a short batch counts as much as a long one. Never negative: a
    coefficient that comes out below zero is zero and the others are fitted without it.
    """

    def __init__(self) -> None:
        self._normal = np.zeros((3, 3))
        self._right = np.zeros(3)
        self._new: list[tuple[float, float, float]] = []
        self._count = 0
        self.start = self.per_token = self.per_square = 0.0

    @property
    def known(self) -> bool:
        """Whether there was any reading."""
        return self.per_token > 0

    @property
    def quadratic(self) -> float:
        """What a squared length costs, in tokens."""
        return self.per_square / self.per_token if self.known else 0.0

    def expected(self, like: Reading) -> float:
        """What a pass over as many tokens is expected to take."""
        return self.start + self.per_token * like.tokens + self.per_square * like.squares

    def tokens_within(self, seconds: float) -> float:
        """How many tokens, squares counted in, fit into that time; infinite while nothing was measured."""
        return max(0.0, seconds - self.start) / self.per_token if self.known else float("inf")

    def ceiling(self, longest_s: float, few: float) -> float:
        """What a batch may cost, in tokens, squares counted in.

        Args:
            longest_s: seconds that it may be expected to take at most.
            few: tokens of one that need not be quick; more must not take longer than `QUICK_S`.
        """
        return min(self.tokens_within(longest_s), max(few, self.tokens_within(QUICK_S) if self.known else 0.0))

    def observe(self, new: Reading) -> None:
        """Take one reading in."""
        if new.seconds <= 0 or new.tokens <= 0:
            return
        self._new.append((1.0 / new.seconds, new.tokens / new.seconds, new.squares / new.seconds))
        # All at once: numpy's steps for each take a hundredth of a short batch. Another stream may have taken them in.
        if (self._count < OFTEN or len(self._new) >= SELDOM) and (new_ones := self._new):
            rows, self._new = np.array(new_ones), []
            weighted, kept = rows.T * FORGET ** np.arange(len(rows))[::-1], FORGET ** len(rows)
            self._count += len(rows)
            self._normal = kept * self._normal + weighted @ rows
            self._right = kept * self._right + weighted.sum(axis=1)
            self.start, self.per_token, self.per_square = _solve(self._normal, self._right)


def _solve(normal: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Seconds (start, per token, per squared length) that fit best of all not negative ones; the token's is never 0.

    ``normal`` [3, 3] and ``right`` [3] are those of the normal equations, of readings (1, tokens, squares) / seconds.
    In Python's own numbers: for so few numpy takes five to seven times as long, and whoever asks next waits for it.
    """
    of, to = normal.tolist(), right.tolist()
    best, least = (0.0, to[1] / of[1][1], 0.0), float("inf")
    for columns in ((1,), (0, 1), (1, 2), (0, 1, 2)):
        found = _eliminated([[of[i][j] for j in columns] for i in columns], [to[i] for i in columns])
        if found is None or min(found) < 0:
            continue
        by_column = dict(zip(columns, found, strict=True))
        solution = by_column.get(0, 0.0), by_column[1], by_column.get(2, 0.0)
        products = [sum(map(mul, row, solution)) for row in of]
        error = sum(map(mul, solution, products)) - 2 * sum(map(mul, to, solution))
        if by_column[1] > 0 and error < least - 1e-12:
            best, least = solution, error
    return best


def _eliminated(of: list[list[float]], to: list[float]) -> list[float] | None:
    """The solution [n] of n normal equations, by Gauss's elimination; None: some say nearly the same (`ALIKE`)."""
    size, scale = len(to), [sqrt(row[i]) for i, row in enumerate(of)]
    rows = [[*(of[i][j] / (scale[i] * scale[j]) for j in range(size)), to[i] / scale[i]] for i in range(size)]
    for i, row in enumerate(rows):
        if row[i] <= ALIKE:
            return None
        for below in rows[i + 1 :]:
            share = below[i] / row[i]
            below[i:] = [own - share * taken for own, taken in zip(below[i:], row[i:], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(map(mul, rows[i][i + 1 : size], found[i + 1 :]))) / rows[i][i]
    return [number / by for number, by in zip(found, scale, strict=True)]
