"""Packing: the token rows of a batch as one row without padding.

Owns the order of the texts in it. Texts are sorted by length, so that texts of equal length lie side by side: a group
is a slice, seen as [texts, length, ...] without copying a number. Made once per batch, used by every layer and head.
Also which texts are padded together (`buckets`), by those who cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sie_bundle.engine.tokenization import Marks, Row

SHARE = 0.125
"""So much of a bucket's own tokens may be added to it as padding."""

SLACK = 64
"""Or so many tokens, which cost less than one more forward pass."""


class Group(NamedTuple):
    """Texts of equal length that lie side by side: tokens ``start`` to ``start + texts * length``."""

    start: int
    texts: int
    length: int
    seen: int
    """So many tokens of each, from the first, are attended to."""

    def view(self, packed: Tensor) -> Tensor:
        """The group's part of ``packed`` [T, ...], seen as [texts, length, ...]."""
        return packed[self.start : self.start + self.texts * self.length].view(
            self.texts, self.length, *packed.shape[1:]
        )


class Keys(NamedTuple):
    """The tokens that are attended to, where a query's augmentation is not."""

    tokens: Tensor
    """[K] int64, their places in the packed row."""
    bounds: Tensor
    """[n + 1] int32: where each text begins among them, and K."""


class Packed(NamedTuple):
    """A batch of ``n`` texts with ``T`` tokens in all."""

    ids: Tensor
    """[T] int64, text after text."""
    positions: Tensor
    """[T] int64, each token's place in its own text, from 0."""
    types: Tensor | None
    """[T] int64, 1 for the tokens of a pair's second text; None when no row is a pair."""
    bounds: Tensor
    """[n + 1] int32: where each text of the packed order begins, and T. The ``cu_seqlens`` of attention kernels."""
    keys: Keys | None
    """Which tokens are attended to; None: all."""
    groups: list[Group]
    """In the order of ``ids``."""
    starts: npt.NDArray[np.int64]
    """[n]: where text i of the caller's order begins."""
    lengths: npt.NDArray[np.int64]
    """[n], in the caller's order."""
    places: npt.NDArray[np.int64]
    """[n]: where text i of the caller's order stands in the packed order."""
    made: dict[object, Any]
    """What a kernel made of the batch for all layers to use."""
    marks: Sequence[Marks | None] = ()
    """[n], in the caller's order."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return self.groups[-1].length


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    """Pack non-empty rows."""
    lengths = np.array([len(row.ids) for row in rows])
    seen = np.array([row.seen for row in rows])
    order = np.lexsort((seen, lengths))
    bounds = _bounds(lengths[order])
    starts, places = np.empty_like(lengths), np.empty_like(order)
    starts[order], places[order] = bounds[:-1], np.arange(len(rows))
    groups: list[Group] = []
    start = 0
    for (length, own), members in groupby(zip(lengths[order].tolist(), seen[order].tolist(), strict=True)):
        group = Group(start, sum(1 for _ in members), length, own)
        groups.append(group)
        start += group.texts * length
    # A token's place in its text is its place in the row less where the text begins.
    positions = np.arange(start) - np.repeat(bounds[:-1], lengths[order])

    def per_token(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.repeat(values[order], lengths[order])

    def moved(array: npt.NDArray[np.int64], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.from_numpy(array).to(device, dtype)

    seconds = np.array([row.second for row in rows])
    return Packed(
        ids=moved(np.concatenate([rows[i].ids for i in order])),
        positions=moved(positions),
        types=moved((positions >= per_token(seconds)).astype(np.int64)) if (seconds < lengths).any() else None,
        bounds=moved(bounds, torch.int32),
        keys=Keys(moved(np.flatnonzero(positions < per_token(seen))), moved(_bounds(seen[order]), torch.int32))
        if (seen < lengths).any()
        else None,
        groups=groups,
        starts=starts,
        lengths=lengths,
        places=places,
        made={},
        marks=[row.marks for row in rows],
    )


def apart(packed: Packed) -> Iterator[Packed]:
    """Each text of a batch as a batch of its own, in the packed order."""
    for group in packed.groups:
        for text in range(group.texts):
            own = slice(group.start + text * group.length, group.start + (text + 1) * group.length)
            device = packed.ids.device
            seen = torch.arange(group.seen, device=device)
            yield Packed(
                ids=packed.ids[own],
                positions=packed.positions[own],
                types=None if packed.types is None else packed.types[own],
                bounds=torch.tensor([0, group.length], dtype=torch.int32, device=device),
                keys=None
                if group.seen == group.length
                else Keys(seen, torch.tensor([0, group.seen], dtype=torch.int32, device=device)),
                groups=[Group(0, 1, group.length, group.seen)],
                starts=np.zeros(1, dtype=np.int64),
                lengths=np.array([group.length]),
                places=np.zeros(1, dtype=np.int64),
                made={},
            )


def buckets(lengths: Sequence[int], *, share: float = SHARE, slack: int = SLACK, squares: int) -> list[range]:
    """Cut texts that are sorted by rising length into ranges that are padded to the length of their longest.

    A bucket's padding is at most ``share`` of its own tokens or ``slack`` tokens, whichever is more, and its
    texts * longest ** 2 at most ``squares`` unless it is one text. From the longest down, each takes as many as fit.
    """
    made = []
    stop = len(lengths)
    while stop:
        longest = own = lengths[stop - 1]
        start = stop - 1
        while start:
            texts, tokens = stop - start + 1, own + lengths[start - 1]
            if texts * longest - tokens > max(slack, share * tokens) or texts * longest * longest > squares:
                break
            start, own = start - 1, tokens
        made.append(range(start, stop))
        stop = start
    return made[::-1]


def _bounds(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])
