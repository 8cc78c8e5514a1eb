"""Attention on a GPU: torch's own varlen kernel (FlashAttention-2, 2307.08691), over a whole batch at once.

Owns what of a batch the kernel is told (`VarlenBatch`). `attend_varlen` is compiled, for ``layer`` together with the
layers; other kernels, and which is taken, are ``attention``'s.
"""

# No annotations from the future: ``compiled``.
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.packing import Packed


class VarlenBatch(NamedTuple):
    """A batch, and what one mask lets its tokens see, by the names of flash-attention's arguments."""

    cu_seqlens_q: Tensor
    """[n + 1] int32: where each text begins, and T."""
    max_seqlen_q: int
    """Tokens of the longest text."""
    cu_seqlens_k: Tensor
    """[n + 1] int32: where each text begins among the tokens that are attended to, and how many those are."""
    max_seqlen_k: int
    """The most of any text."""
    attended_to: Tensor | None
    """[keys] int64, where those tokens stand; None: all are."""
    causal: bool
    window_left: int
    """Keys before and behind a token that it sees; -1: all."""
    window_right: int


def takes(packed: Packed, mask: AttentionMask) -> bool:
    """Whether the kernel computes that: it adds nothing to scores, and counts places from the last query and key, which
    is another token where not all are attended to."""
    return mask.unbiased and (packed.keys is None or (mask.window is None and not mask.causal))


def varlen_batch(packed: Packed, mask: AttentionMask) -> VarlenBatch:
    """A batch as the kernel is told of it. ``mask``: one that it `takes`."""
    side = -1 if mask.window is None else mask.window
    keys, longest = packed.cu_seqlens, packed.longest
    if packed.keys is not None:
        keys, longest = packed.keys.cu_seqlens, max(group.seen for group in packed.groups)
    return VarlenBatch(
        cu_seqlens_q=packed.cu_seqlens,
        max_seqlen_q=packed.longest,
        cu_seqlens_k=keys,
        max_seqlen_k=longest,
        attended_to=packed.keys.tokens if packed.keys else None,
        causal=mask.causal,
        window_left=side,
        window_right=0 if mask.causal else side,
    )


def attend_varlen(q: Tensor, k: Tensor, v: Tensor, seen: VarlenBatch) -> Tensor:
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
        seen.cu_seqlens_q,
        seen.cu_seqlens_k,
        seen.max_seqlen_q,
        seen.max_seqlen_k,
        0.0,
        seen.causal,
        False,
        scale=size**-0.5,
        window_size_left=seen.window_left,
        window_size_right=seen.window_right,
    )
    attended: Tensor = found[0]
    return attended[:, :, :size] if more > 0 else attended
