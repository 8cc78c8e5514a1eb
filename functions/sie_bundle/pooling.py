"""Pooling: the token states of a packed batch become one vector per text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sie_bundle.packing import Packed

# Each takes a group's states, [texts, length, hidden], and gives [texts, hidden].
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[:, 0],
    "mean": lambda states: states.mean(dim=1),
    "last": lambda states: states[:, -1],
}


def pool(states: Tensor, packed: Packed, pooling: str, *, unit_length: bool) -> Tensor:
    """One vector per text.

    Args:
        states: [T, hidden] of ``packed``.
        pooling: "cls" (the first token), "mean" (over all tokens, special ones included) or "last".
        unit_length: scale each vector to Euclidean length 1.

    Returns:
        [n, hidden] in the caller's order of texts.
    """
    vectors = torch.cat([POOLINGS[pooling](group.view(states)) for group in packed.groups])[packed.places]
    return normalize(vectors, dim=-1) if unit_length else vectors
