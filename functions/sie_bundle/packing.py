"""Packing: the token rows of a batch as one row without padding.

Owns the order of the texts in it. Texts are sorted by length, so that texts of equal length lie side by side: a group
is a slice, seen as [texts, length, ...] without copying a number. Made once per batch, used by every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sie_bundle.tokenization import Row


class Group(NamedTuple):
    """Texts of equal length that lie side by side: tokens ``start`` to ``start + texts * length``."""

    start: int
    texts: int
    length: int

    def view(self, packed: Tensor) -> Tensor:
        """The group's part of ``packed`` [T, ...], seen as [texts, length, ...]."""
        return packed[self.start : self.start + self.texts * self.length].view(
            self.texts, self.length, *packed.shape[1:]
        )


class Packed(NamedTuple):
    """A batch of ``n`` texts with ``T`` tokens in all."""

    ids: Tensor
    """[T] int64, text after text."""
    positions: Tensor
    """[T] int64, each token's place in its own text, from 0."""
    groups: list[Group]
    """In the order of ``ids``."""
    places: Tensor
    """[n] int64: where text i of the caller's order stands in the packed order."""


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    """Pack non-empty rows of token ids."""
    lengths = np.array([len(row) for row in rows])
    order = np.argsort(lengths, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(rows))
    groups: list[Group] = []
    start = 0
    for length, members in groupby(lengths[order].tolist()):
        group = Group(start, sum(1 for _ in members), length)
        groups.append(group)
        start += group.texts * length
    ids = np.concatenate([rows[i] for i in order])
    positions = np.concatenate([np.tile(np.arange(group.length), group.texts) for group in groups])
    return Packed(
        ids=torch.from_numpy(ids).to(device),
        positions=torch.from_numpy(positions).to(device),
        groups=groups,
        places=torch.from_numpy(places).to(device),
    )
