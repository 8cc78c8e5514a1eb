"""Pooling: the token states of a packed batch become one vector per text, in one operation whatever the lengths."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from sie_bundle.engine.packing import Packed

POOLINGS = ("cls", "mean", "last", "weighted_mean")


def pool(states: Tensor, packed: Packed, pooling: str) -> Tensor:
    """One vector per text, float32.

    Args:
        states: [T, hidden] of ``packed``.
        pooling: "cls" (the first token), "mean" (over all tokens, special ones included), "last", or "weighted_mean"
            (each token weighs its place, counted from 1; SGPT, 2202.08904).

    Returns:
        [n, hidden] in the caller's order of texts.
    """
    if pooling in ("cls", "last"):
        places = packed.starts if pooling == "cls" else packed.starts + packed.lengths - 1
        return states[torch.from_numpy(places).to(states.device)].float()
    tokens = torch.arange(len(states), dtype=packed.bounds.dtype, device=states.device)
    weights = _weights(packed) if pooling == "weighted_mean" else None
    mode = "mean" if weights is None else "sum"
    vectors = embedding_bag(tokens, states.float(), packed.bounds[:-1], mode=mode, per_sample_weights=weights)
    return vectors[torch.from_numpy(packed.places).to(states.device)]


def _weights(packed: Packed) -> Tensor:
    """[T] float32, 1 in all for each text."""
    lengths = packed.bounds.diff()
    sums = torch.repeat_interleave(lengths * (lengths + 1) / 2, lengths, output_size=len(packed.positions))
    return (packed.positions + 1) / sums
