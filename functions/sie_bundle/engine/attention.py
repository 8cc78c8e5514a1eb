"""Attention on packed rows: each text attends to itself alone, with no padding and no mask between texts.

Owns the contract, `Attend`, the choice of a kernel per device, and the kernels for GPUs: torch's own varlen,
flash-attention's, and padded texts for what neither takes: biases, float32, and GPUs before Ampere. All of them and
``cpu_attention`` serve full, causal and windowed attention and a query's augmentation.

Scores are those of 1706.03762: products of queries and keys, divided by sqrt(head_dim).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.packing import Packed, buckets
from sie_bundle.engine.sight import Sight, sloped
from sie_bundle.engine.transfer import moved
from sie_bundle.engine.varlen_attention import attended_by_bounds, bounds

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Packed, Sight], Tensor]
"""(q [T, heads, head_dim], k and v [T, key heads, head_dim], packed, sight) to [T, heads, head_dim], all packed."""


SQUARES = 1 << 20
"""The most texts * length ** 2 in a call of `padded`, which keeps a number for each, and with a bias for each head."""

HALVES = (torch.float16, torch.bfloat16)
AMPERE = 8
"""The first compute capability for which there are varlen kernels; a T4 has 7."""


def kernel(device: torch.device, dtype: torch.dtype) -> Attend:
    """The fastest attention this device has for numbers of that type."""
    if device.type != "cuda":
        return attend
    if dtype not in HALVES or torch.cuda.get_device_capability(device)[0] < AMPERE:
        return padded
    # The same kernel, FlashAttention-2's; but torch's own is called with all layers at once (``layer``).
    if torch.backends.cuda.is_flash_attention_available():
        return varlen
    return flash if find_spec("flash_attn") else padded


def flash(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """flash-attention's varlen kernel (2307.08691), for a torch that is built without it; float16 or bfloat16."""
    if not sight.unbiased:
        return padded(q, k, v, packed, sight)
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found,unused-ignore]

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
        return padded(q, k, v, packed, sight)
    return attended_by_bounds(q, k, v, bounds(packed, sight))


def padded(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """torch's fused attention on padded texts: any GPU, any type, and any sight, with a bias too."""
    key = padded, q.dtype, sight.causal, sight.window, id(sight.bias), id(sight.slopes)
    if key not in packed.made:
        packed.made[key] = list(_padded(packed, sight, q.dtype))
    if k.size(1) < q.size(1):  # the kernels for masks want as many heads of keys
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    attended = []
    for part in packed.made[key]:
        queries, keys, values = (x[part.places].transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(queries, keys, values, part.mask, is_causal=part.causal)
        attended.append(out.transpose(1, 2).flatten(0, 1)[part.own])
    return torch.cat(attended)


class _Padded(NamedTuple):
    """Some texts side by side, padded to the length of their longest."""

    places: Tensor
    """[texts, longest] int64: where each token stands in the row; behind a text any place."""
    own: Tensor
    """[tokens] int64: where each of their tokens stands among the padded ones."""
    causal: bool
    """Whether nothing is hidden but what comes later, padding included."""
    mask: Tensor | None
    """What is added to the scores, [1 or texts, 1 or heads, 1 or longest, longest]; None: nothing."""


def _padded(packed: Packed, sight: Sight, dtype: torch.dtype) -> Iterator[_Padded]:
    """The batch in parts, made once for all layers."""
    device = packed.device
    order = np.argsort(packed.places)
    lengths, starts = packed.lengths[order], packed.starts[order]
    seen = np.repeat([group.seen for group in packed.groups], [group.texts for group in packed.groups])
    for some in (slice(each.start, each.stop) for each in buckets(lengths.tolist(), squares=SQUARES)):
        token = np.arange(lengths[some][-1])
        inside, attended = token < lengths[some, None], token < seen[some, None]
        causal = sight.causal and sight.whole and bool((seen[some] == lengths[some]).all())
        yield _Padded(
            moved(starts[some, None] + np.where(inside, token, 0), device),
            moved(np.flatnonzero(inside), device),
            causal,
            None if causal else _mask(sight, attended, device, dtype),
        )


def _mask(sight: Sight, attended: npt.NDArray[np.bool_], device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of padded texts; ``attended`` [texts, n]: the keys that are, but for the sight."""
    length = attended.shape[1]
    mask = _bias(sight, length, device, dtype)
    if not attended.all():
        mask = _hidden(mask, moved(~attended[:, None, None], device), dtype)
    if sight.causal or sight.window is not None:
        mask = _hidden(mask, _unseen(sight, length, device), dtype)
    return mask


def _hidden(mask: Tensor | None, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask, and minus infinity where ``hidden``."""
    more = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return more if mask is None else mask + more


def _unseen(sight: Sight, length: int, device: torch.device) -> Tensor:
    """[1, 1, length, length]: which keys a query does not see for its direction and its window.

    Made of one byte each: of distances in int64 a text of 32,768 tokens would have 8 GB.
    """
    side = length if sight.window is None else sight.window
    seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu_(-side)
    return seen.tril_(0 if sight.causal else side).logical_not_()


def _bias(sight: Sight, length: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """[1, heads, length, length]."""
    if sight.slopes is not None:
        places = torch.arange(length, device=device)
        return sloped(sight.slopes, places, places).to(dtype)[None]
    return None if sight.bias is None else sight.bias[None, :, :length, :length].to(dtype)
