"""Outputs: what heads give, per row. A matrix where all rows have one shape, else a list.

Owns joining what several batches computed and the check that numbers are finite. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]


class SparseRow(NamedTuple):
    """The entries of one text that are not zero, by rising index."""

    indices: npt.NDArray[np.int32]
    values: Floats


Outputs: TypeAlias = Floats | list[Floats] | list[SparseRow]
"""One per row: a matrix [n, size]; or arrays [tokens, size]; or `SparseRow`."""


def count(by_head: Mapping[str, Outputs]) -> int:
    """How many rows they are for."""
    return len(next(iter(by_head.values())))


def join(parts: Sequence[Outputs]) -> Outputs:
    """Parts of one head's outputs in one, in order."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(cast("Sequence[Floats]", parts))
    return cast("list[Floats]", [row for part in parts for row in part])


def all_finite(by_head: Mapping[str, Outputs]) -> bool:
    """Whether certainly all numbers are finite; False also where that is only found row by row.

    One product says it of a matrix, in half of the time that a look at each number takes.
    """
    for rows in by_head.values():
        # Unlike ``dot``, ``vdot`` warns of nothing.
        if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or not math.isfinite(np.vdot(rows, rows)):
            return False
    return True


def first_not_finite(by_head: Mapping[str, Outputs]) -> int | None:
    """The first row any of whose outputs holds a number that is not finite."""
    for rows in by_head.values():
        if isinstance(rows, np.ndarray):
            finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        else:
            numbers = [row.values if isinstance(row, SparseRow) else row for row in rows]
            finite = np.array([bool(np.isfinite(row).all()) for row in numbers])
        if not finite.all():
            return int(np.argmin(finite))
    return None
