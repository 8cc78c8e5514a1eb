"""Embedding: from tokens to the states that the first layer takes.

Owns which tables are added up, as the family's record names them. By torch here; compiled code reads the same tables
(``fused``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sie_bundle.engine.family import Architecture
from sie_bundle.engine.layer import Norm
from sie_bundle.engine.linear import Linear
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.parameters import Parameters


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

    def __call__(self, packed: Packed) -> Tensor:
        """[T, hidden]."""
        x = embedding(packed.ids, self.words).to(self.stream)
        if self.positions is not None:
            x += embedding(packed.positions + self.first_position, self.positions)
        if self.types is not None:
            x += self.types[0] if packed.types is None else embedding(packed.types, self.types)
        x = self.norm(x) if self.norm else x
        return self.projection(x) if self.projection else x


def take(architecture: Architecture, parameters: Parameters) -> Embedding:
    """An encoder's, of a checkpoint's parameters.

    Raises:
        ModelLoadFailedError: a tensor is missing, or has fewer rows than config.json says.
    """
    family, prefix = architecture.family, parameters.prefix
    config = architecture.config
    projection = prefix + family.embedding_projection
    projected = family.embedding_projection and f"{projection}.weight" in parameters
    places, types = f"{prefix}{family.positions}.weight", f"{prefix}{family.token_types}.weight"
    return Embedding(
        words=parameters.table(f"{prefix}{family.words}.weight", config.vocab_size),
        positions=parameters.table(places, config.max_position_embeddings) if family.positions else None,
        types=_two(parameters.table(types)) if family.token_types else None,
        first_position=family.first_position,
        norm=parameters.norm(prefix + family.embedding_norm) if family.embedding_norm else None,
        projection=parameters.linear([projection], dtype=parameters.stream) if projected else None,
        stream=parameters.stream,
    )


def _two(types: Tensor) -> Tensor:
    """One type is that of both texts of a pair, whichever the tokenizer says."""
    return types.expand(2, -1) if len(types) == 1 else types
