"""Attention on a GPU: torch's own varlen kernel (FlashAttention-2, 2307.08691), over a whole batch at once.

Owns what of a batch the kernel is told (`Bounds`). `attended_by_bounds` is compiled, for ``layer`` together with the
layers; other kernels, and which is taken, are ``attention``'s.
"""

# No annotations from the future: ``compiled``.
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed
from sie_bundle.engine.sight import Sight


class Bounds(NamedTuple):
    """A batch, and what one sight lets its tokens see."""

    texts: Tensor
    """[n + 1] int32: where each text begins, and T."""
    longest: int
    """Tokens of the longest text."""
    keys: Tensor
    """[n + 1] int32: where each text begins among the tokens that are attended to, and how many those are."""
    most_keys: int
    """The most of any text."""
    attended_to: Tensor | None
    """[keys] int64, where those tokens stand; None: all are."""
    causal: bool
    before: int
    """Keys before and behind a token that it sees; -1: all."""
    behind: int


def bounds(packed: Packed, sight: Sight) -> Bounds:
    """A batch as the kernel is told of it. ``sight``: without a bias."""
    side = -1 if sight.window is None else sight.window
    keys, most = packed.bounds, packed.longest
    if packed.keys is not None:
        keys, most = packed.keys.bounds, max(group.seen for group in packed.groups)
    return Bounds(
        texts=packed.bounds,
        longest=packed.longest,
        keys=keys,
        most_keys=most,
        attended_to=packed.keys.tokens if packed.keys else None,
        causal=sight.causal,
        before=side,
        behind=0 if sight.causal else side,
    )


def attended_by_bounds(q: Tensor, k: Tensor, v: Tensor, seen: Bounds) -> Tensor:
    """Attention of queries [T, heads, head_dim] over keys and values [T, key heads, head_dim], float16 or bfloat16.

    By what ``torch.nn.attention.varlen`` calls, and not by that: it is an operator in Python, which imports a compiler
    at its first call and takes a tenth of a millisecond in every layer.
    """
    some = seen.attended_to
    if some is not None:
        k, v = k[some], v[some]
    size = q.size(2)
    more = (8 - size % 8) % 8  # the kernel takes eights
    if more > 0:
        room = [0, more]
        q, k, v = torch.constant_pad_nd(q, room), torch.constant_pad_nd(k, room), torch.constant_pad_nd(v, room)
    found = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        seen.texts,
        seen.keys,
        seen.longest,
        seen.most_keys,
        0.0,
        seen.causal,
        False,
        scale=size**-0.5,
        window_size_left=seen.before,
        window_size_right=seen.behind,
    )
    attended: Tensor = found[0]
    return attended[:, :, :size] if more > 0 else attended
