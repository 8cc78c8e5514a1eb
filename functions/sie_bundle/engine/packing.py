"""Packing: the token rows of a batch as one row without padding.

Owns the order of the texts in it. Texts are sorted by length, so that texts of equal length lie side by side: a group
is a slice, seen as [texts, length, ...] without copying a number. Made once per batch, used by every layer and head.
Also which texts are padded together (`buckets`), by those who cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sie_bundle.engine.row import Row
from sie_bundle.engine.transfer import moved

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
    cu_seqlens: Tensor
    """[n + 1] int32: where each text begins among them, and K."""


class Tokens(NamedTuple):
    """The packed row, as arrays on the host. Texts are in the packed order."""

    ids: npt.NDArray[np.int64]
    """[T], text after text."""
    positions: npt.NDArray[np.int64]
    """[T], each token's place in its own text, from 0."""
    types: npt.NDArray[np.int64] | None
    """[T], 1 for the tokens of a pair's second text; None when no row is a pair."""
    cu_seqlens: npt.NDArray[np.int32]
    """[n + 1]: where each text begins, and T. The ``cu_seqlens`` of attention kernels."""
    seen: npt.NDArray[np.int32]
    """[n]: so many tokens of each, from the first, are attended to."""

    def counted(self, padding: int | None) -> npt.NDArray[np.int64]:
        """[tokens]: ``positions`` as RoBERTa counts them: tokens of the id ``padding`` are left out and stand at -1."""
        if padding is None or not (skipped := self.ids == padding).any():
            return self.positions
        left_out = np.concatenate([[0], np.cumsum(skipped)])
        lengths = np.diff(self.cu_seqlens, append=len(self.ids))  # what stands behind the last text is nobody's
        return np.where(skipped, -1, self.positions - left_out[1:] + np.repeat(left_out[self.cu_seqlens], lengths))


@dataclass(eq=False)
class Packed:
    """A batch of ``n`` texts with ``T`` tokens in all.

    Its tensors are made when they are first asked for: compiled code needs none of them, and torch lets go of Python's
    lock for each, which it then waits for.
    """

    tokens: Tokens
    device: torch.device
    lengths: npt.NDArray[np.int64]
    """[n], in the caller's order."""
    places: npt.NDArray[np.int64]
    """[n]: where text i of the caller's order stands in the packed order."""
    longest: int
    """Tokens of the longest text."""
    rows: Sequence[Row]
    """[n], in the caller's order."""
    made: dict[object, Any] = field(default_factory=dict)
    """What a kernel made of the batch for all layers to use."""

    @property
    def ids(self) -> Tensor:
        """See `Tokens`; on the device, like the others."""
        return self._sent["ids"]

    @property
    def positions(self) -> Tensor:
        return self._sent["positions"]

    def counted(self, padding: int | None) -> Tensor:
        """See `Tokens.counted`."""
        counted = self.tokens.counted(padding)
        return self.positions if counted is self.tokens.positions else moved(counted, self.device)

    @property
    def types(self) -> Tensor | None:
        return self._sent.get("types")

    @property
    def order(self) -> Tensor:
        """``places`` on the device."""
        return self._sent["places"]

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """[n]: where text i of the caller's order begins."""
        return self.tokens.cu_seqlens[self.places].astype(np.int64)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        return self._sent["cu_seqlens"].to(torch.int32)

    @cached_property
    def _sent(self) -> dict[str, Tensor]:
        """All arrays as one: each by itself takes as long."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "ids": self.tokens.ids,
            "positions": self.tokens.positions,
            "cu_seqlens": self.tokens.cu_seqlens,
            "places": self.places,
        }
        if self.tokens.types is not None:
            arrays["types"] = self.tokens.types
        whole = moved(np.concatenate(list(arrays.values())), self.device)
        return dict(zip(arrays, torch.split(whole, [len(each) for each in arrays.values()]), strict=True))

    @cached_property
    def keys(self) -> Keys | None:
        """Which tokens are attended to; None: all."""
        cu_seqlens, seen = self.tokens.cu_seqlens, self.tokens.seen
        lengths = np.diff(cu_seqlens)
        if (seen == lengths).all():
            return None
        attended = np.flatnonzero(self.tokens.positions[: cu_seqlens[-1]] < np.repeat(seen, lengths))
        return Keys(moved(attended, self.device), moved(_cu_seqlens(seen), self.device))

    @cached_property
    def groups(self) -> list[Group]:
        """In the order of ``ids``."""
        groups: list[Group] = []
        start = 0
        lengths, seen_of = np.diff(self.tokens.cu_seqlens).tolist(), self.tokens.seen.tolist()
        for (length, seen), members in groupby(zip(lengths, seen_of, strict=True)):
            group = Group(start, sum(1 for _ in members), length, seen)
            groups.append(group)
            start += group.texts * length
        return groups


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    """Pack rows.

    Raises:
        ValueError: one is empty, of which there is nothing to pool: what lies before it would be read for its own.
    """
    # By Python's own sort: numpy's lets go of the lock, like some of its other functions.
    of_rows, seen = [len(row.ids) for row in rows], [row.seen for row in rows]
    keys: Sequence[Any] = of_rows if seen == of_rows else list(zip(of_rows, seen, strict=True))
    order = sorted(range(len(rows)), key=keys.__getitem__)
    sorted_rows = [rows[i] for i in order]
    lengths = [of_rows[i] for i in order]
    if not lengths[0]:
        raise ValueError("a row without tokens")
    cu_seqlens, places = _cu_seqlens(lengths), np.empty(len(rows), np.int64)
    places[order] = _counted(len(rows))
    types = None
    if [row.second for row in rows] != of_rows:
        types = np.concatenate([_counted(len(row.ids)) >= row.second for row in sorted_rows]).astype(np.int64)
    return Packed(
        tokens=Tokens(
            ids=np.concatenate([row.ids for row in sorted_rows]),
            positions=np.concatenate([_counted(length) for length in lengths]),
            types=types,
            cu_seqlens=cu_seqlens,
            seen=np.array([seen[i] for i in order], np.int32),
        ),
        device=device,
        lengths=np.array(of_rows),
        places=places,
        longest=lengths[-1],
        rows=rows,
    )


_COUNTED = np.arange(1024)


def _counted(length: int) -> npt.NDArray[np.int64]:
    """[0, ..., length - 1]."""
    return _COUNTED[:length] if length <= len(_COUNTED) else np.arange(length)


def apart(packed: Packed) -> Iterator[Packed]:
    """Each text of a batch as a batch of its own, in the packed order."""
    for i in np.argsort(packed.places):
        yield pack([packed.rows[i]], packed.device)


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


def _cu_seqlens(lengths: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.array([0, *accumulate(lengths)], np.int32)
