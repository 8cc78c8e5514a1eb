"""Embedding: from tokens to the states that the first layer takes.

By torch here; compiled code reads the same tables (``fused``). Which they are is ``models.packed_encoder``'s.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sie_bundle.engine.layer import Norm
from sie_bundle.engine.linear import Linear
from sie_bundle.engine.packing import Packed


class Embedding(NamedTuple):
    """The sum of a token's rows of some tables, normed, and of a model whose tables are narrower, projected."""

    words: Tensor
    """[vocabulary, size], like the other tables of any float type."""
    positions: Tensor | None
    """[places, size]."""
    types: Tensor | None
    """[2, size]: of a pair's first and second text; a text alone is a first one."""
    first_position: int
    """The place of a text's first token; families derived from RoBERTa count from behind the padding's id."""
    norm: Norm | None
    projection: Linear | None
    stream: torch.dtype
    """Of the states."""

    @property
    def padding(self) -> int | None:
        """The padding's id, where places are counted from behind it: a token of that id inside a text has none."""
        return self.first_position - 1 if self.first_position else None

    def __call__(self, packed: Packed) -> Tensor:
        """[T, hidden]."""
        x = embedding(packed.ids, self.words).to(self.stream)
        if self.positions is not None:
            x += embedding(packed.counted(self.padding) + self.first_position, self.positions)
        if self.types is not None:
            x += self.types[0] if packed.types is None else embedding(packed.types, self.types)
        x = self.norm(x) if self.norm else x
        return self.projection(x) if self.projection else x
