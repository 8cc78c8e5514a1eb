"""Pooling: the token states of a packed batch become one vector per text, in one operation whatever the lengths.

By torch, and on a CPU by compiled code, which does not ask for Python's lock between its steps.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int32, c_void_p
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from sie_bundle.engine import native
from sie_bundle.engine.native import address
from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.transfer import moved

POOLINGS = ("cls", "mean", "last", "weighted_mean")
"""In the compiled code's order."""

BRIEF = 1 << 20
"""So many numbers of states, 4 MB, are pooled in a moment; for more, Python's lock is let go."""


class Pool(Protocol):
    """`pool`, or the same by compiled code."""

    def __call__(self, states: Tensor, packed: Packed, pooling: str, unit: bool = False) -> Tensor | Floats: ...


def pool(states: Tensor, packed: Packed, pooling: str, unit: bool = False) -> Tensor:
    """One vector per text, float32.

    Args:
        states: [T, hidden] of ``packed``.
        pooling: "cls" (the first token), "mean" (over all tokens, special ones included), "last", or "weighted_mean"
            (each token weighs its place, counted from 1; SGPT, 2202.08904).
        unit: bring each to the length 1.

    Returns:
        [n, hidden] in the caller's order of texts.
    """
    vectors = _pooled(states, packed, pooling).float()
    return normalize(vectors, dim=-1) if unit else vectors


def _pooled(states: Tensor, packed: Packed, pooling: str) -> Tensor:
    if pooling in ("cls", "last"):
        places = packed.starts if pooling == "cls" else packed.starts + packed.lengths - 1
        return states[moved(places, states.device)]
    tokens = torch.arange(len(states), dtype=packed.cu_seqlens.dtype, device=states.device)
    weights = _weights(packed) if pooling == "weighted_mean" else None
    mode = "mean" if weights is None else "sum"
    vectors = embedding_bag(tokens, states.float(), packed.cu_seqlens[:-1], mode=mode, per_sample_weights=weights)
    return vectors[packed.order]


def _weights(packed: Packed) -> Tensor:
    """[T] float32, 1 in all for each text."""
    lengths = packed.cu_seqlens.diff()
    sums = torch.repeat_interleave(lengths * (lengths + 1) / 2, lengths, output_size=len(packed.positions))
    return (packed.positions + 1) / sums


class _Pooling(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("states", "cu_seqlens", "places", "vectors")),
        *((name, c_int32) for name in ("texts", "size", "kind", "unit")),
    )


def by(library: native.Library) -> Pool:
    """`pool` by compiled code, to an array [n, hidden] float32, of the states that `fused.Fused` gives."""
    brief, longer = (native.function(library, "pool", None, POINTER(_Pooling), brief=brief) for brief in (True, False))

    def compiled(states: Tensor, packed: Packed, pooling: str, unit: bool = False) -> Floats:
        (texts,), size = packed.places.shape, states.stride(0)
        vectors = np.empty((texts, size), np.float32)
        run = brief if states.numel() <= BRIEF else longer
        run(
            _Pooling(
                states=states.data_ptr(),
                cu_seqlens=address(packed.tokens.cu_seqlens),
                places=address(packed.places),
                vectors=address(vectors),
                texts=texts,
                size=size,
                kind=POOLINGS.index(pooling),
                unit=unit,
            )
        )
        # Behind a state's own numbers there are zeros.
        return vectors if states.shape[1] == size else np.ascontiguousarray(vectors[:, : states.shape[1]])

    return compiled
