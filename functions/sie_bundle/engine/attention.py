"""Attention on packed rows: each text attends to itself alone, with no padding and no mask between texts.

Owns the contract, `Attend`, the choice of a kernel per device, and the kernels for GPUs: flash-attention's varlen and
torch's own. Both and ``cpu_attention`` serve full, causal and windowed attention and a query's augmentation.

Scores are those of 1706.03762: products of queries and keys, divided by sqrt(head_dim).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.sight import Sight, sloped

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Packed, Sight], Tensor]
"""(q [T, heads, head_dim], k and v [T, key heads, head_dim], packed, sight) to [T, heads, head_dim], all packed."""


def kernel(device: torch.device) -> Attend:
    """The fastest attention this device has."""
    if device.type != "cuda":
        return attend
    try:
        import flash_attn  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return varlen
    return flash


def flash(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """flash-attention's varlen kernel (2307.08691); GPU, float16 or bfloat16."""
    if sight.bias is not None or sight.slopes is not None:
        return with_bias(q, k, v, packed, sight)
    from flash_attn import flash_attn_varlen_func

    k, v, bounds, longest = _seen(k, v, packed)
    attended: Tensor = flash_attn_varlen_func(
        q,
        k,
        v,
        packed.bounds,
        bounds,
        packed.longest,
        longest,
        causal=sight.causal,
        window_size=_window(sight),
    )
    return attended


def varlen(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """torch's own varlen kernel; GPU, float16 or bfloat16."""
    if sight.bias is not None or sight.slopes is not None:
        return with_bias(q, k, v, packed, sight)
    from torch.nn.attention.varlen import varlen_attn

    k, v, bounds, longest = _seen(k, v, packed)
    attended = varlen_attn(
        q,
        k,
        v,
        packed.bounds,
        bounds,
        packed.longest,
        longest,
        window_size=_window(sight),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(attended, Tensor)
    return attended


def with_bias(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """Scaled dot-product attention per group with an additive bias, which the varlen kernels do not take."""
    parts = []
    for group in packed.groups:
        if sight.slopes is not None:
            places = torch.arange(group.length, device=q.device)
            bias = sloped(sight.slopes, places, places[: group.seen])
        else:
            assert sight.bias is not None
            bias = sight.bias[:, : group.length, : group.seen]
        queries, keys, values = (group.view(x).transpose(1, 2) for x in (q, k, v))
        keys, values = keys[:, :, : group.seen], values[:, :, : group.seen]
        out = scaled_dot_product_attention(queries, keys, values, bias.to(q.dtype)[None])
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def _seen(k: Tensor, v: Tensor, packed: Packed) -> tuple[Tensor, Tensor, Tensor, int]:
    """Keys and values that are attended to, where each text begins among them, and the most of any text."""
    if packed.keys is None:
        return k, v, packed.bounds, packed.longest
    return k[packed.keys.tokens], v[packed.keys.tokens], packed.keys.bounds, max(g.seen for g in packed.groups)


def _window(sight: Sight) -> tuple[int, int]:
    side = -1 if sight.window is None else sight.window
    return side, 0 if sight.causal else side
