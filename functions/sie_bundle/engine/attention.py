"""Attention on packed rows: each text attends to itself alone, with no padding and no mask between texts.

Owns the contract, `Attend`, the choice of a kernel per device, and the kernels for GPUs: flash-attention's varlen and
torch's own. Both and ``cpu_attention`` serve full, causal and windowed attention and a query's augmentation.

Scores are those of 1706.03762: products of queries and keys, divided by sqrt(head_dim).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.packing import Packed, buckets
from sie_bundle.engine.sight import Sight, sloped
from sie_bundle.engine.varlen_attention import attended_by_bounds, bounds

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Packed, Sight], Tensor]
"""(q [T, heads, head_dim], k and v [T, key heads, head_dim], packed, sight) to [T, heads, head_dim], all packed."""


SQUARES = 1 << 20
"""The most texts * length ** 2 that share a call with a bias, a number for each of which and each head is kept."""


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
    if not sight.unbiased:
        return with_bias(q, k, v, packed, sight)
    from flash_attn import flash_attn_varlen_func

    seen = bounds(packed, sight)
    if seen.attended_to is not None:
        k, v = k[seen.attended_to], v[seen.attended_to]
    attended: Tensor = flash_attn_varlen_func(
        q,
        k,
        v,
        seen.texts,
        seen.keys,
        seen.longest,
        seen.most_keys,
        causal=seen.causal,
        window_size=(seen.before, seen.behind),
    )
    return attended


def varlen(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """torch's own varlen kernel; GPU, float16 or bfloat16."""
    if not sight.unbiased:
        return with_bias(q, k, v, packed, sight)
    return attended_by_bounds(q, k, v, bounds(packed, sight))


def with_bias(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """torch's fused attention with an additive bias, which the varlen kernels do not take: on padded texts."""
    key = with_bias, q.dtype, id(sight.bias), id(sight.slopes)
    if key not in packed.made:
        packed.made[key] = list(_padded(packed, sight, q.dtype))
    attended = []
    for part in packed.made[key]:
        queries, keys, values = (x[part.places].transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(queries, keys, values, part.bias)
        attended.append(out.transpose(1, 2).flatten(0, 1)[part.own])
    return torch.cat(attended)


class _Padded(NamedTuple):
    """Some texts side by side, padded to the length of their longest."""

    places: Tensor
    """[texts, longest] int64: where each token stands in the row; behind a text any place."""
    own: Tensor
    """[tokens] int64: where each of their tokens stands among the padded ones."""
    bias: Tensor
    """[1 or texts, heads, longest, longest], minus infinity for keys that are not attended to."""


def _padded(packed: Packed, sight: Sight, dtype: torch.dtype) -> Iterator[_Padded]:
    """The batch in parts, made once for all layers."""
    device = packed.device
    order = np.argsort(packed.places)
    lengths, starts = packed.lengths[order], packed.starts[order]
    seen = np.repeat([group.seen for group in packed.groups], [group.texts for group in packed.groups])
    for some in (slice(each.start, each.stop) for each in buckets(lengths.tolist(), squares=SQUARES)):
        token = np.arange(lengths[some][-1])
        inside, attended = token < lengths[some, None], token < seen[some, None]
        bias = _bias(sight, len(token), device).to(dtype)[None]
        if not attended.all():
            hidden = torch.from_numpy(~attended).to(device)[:, None, None]
            bias = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf) + bias
        yield _Padded(
            torch.from_numpy(starts[some, None] + np.where(inside, token, 0)).to(device),
            torch.from_numpy(np.flatnonzero(inside)).to(device),
            bias,
        )


def _bias(sight: Sight, length: int, device: torch.device) -> Tensor:
    """[heads, length, length]."""
    if sight.slopes is not None:
        places = torch.arange(length, device=device)
        return sloped(sight.slopes, places, places)
    assert sight.bias is not None
    return sight.bias[:, :length, :length]
