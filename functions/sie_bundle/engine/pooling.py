"""Pooling: the token states of a packed batch become one vector per text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed

POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda states: states[:, 0].float(),
    "mean": lambda states: states.mean(dim=1, dtype=torch.float32),
    "last": lambda states: states[:, -1].float(),
    "weighted_mean": lambda states: _weighted_mean(states.float()),
}
"""Each takes a group's states, [texts, length, hidden], and gives [texts, hidden] float32."""


def pool(states: Tensor, packed: Packed, pooling: str) -> Tensor:
    """One vector per text, float32.

    Args:
        states: [T, hidden] of ``packed``.
        pooling: "cls" (the first token), "mean" (over all tokens, special ones included), "last", or "weighted_mean"
            (each token weighs its place, counted from 1; SGPT, 2202.08904).

    Returns:
        [n, hidden] in the caller's order of texts.
    """
    vectors = torch.cat([POOLINGS[pooling](group.view(states)) for group in packed.groups])
    return vectors[torch.from_numpy(packed.places).to(vectors.device)]


def _weighted_mean(states: Tensor) -> Tensor:
    weights = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=states.dtype)
    return torch.einsum("nlh,l->nh", states, weights / weights.sum())
