"""Attention on packed rows: each text attends to itself alone, with no padding and no mask between texts.

Owns the contract, `Attend`, the choice of a kernel per device, and the kernels for GPUs: torch's own varlen,
flash-attention's, and padded texts for what neither takes: biases, windows where a query is augmented, float32, and
GPUs before Ampere. With them and with ``cpu_attention`` there are full, causal and windowed attention and a query's
augmentation.

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

from sie_bundle.engine.attention_mask import AttentionMask, sloped
from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.packing import Packed, buckets
from sie_bundle.engine.transfer import moved
from sie_bundle.engine.varlen_attention import attend_varlen, takes, varlen_batch

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Packed, AttentionMask], Tensor]
"""(q [T, heads, head_dim], k and v [T, key heads, head_dim], packed, mask) to [T, heads, head_dim], all packed."""


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


def flash(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    """flash-attention's varlen kernel (2307.08691), for a torch that is built without it; float16 or bfloat16."""
    if not takes(packed, mask):
        return padded(q, k, v, packed, mask)
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found,unused-ignore]

    seen = varlen_batch(packed, mask)
    if seen.attended_to is not None:
        k, v = k[seen.attended_to], v[seen.attended_to]
    attended: Tensor = flash_attn_varlen_func(
        q,
        k,
        v,
        seen.cu_seqlens_q,
        seen.cu_seqlens_k,
        seen.max_seqlen_q,
        seen.max_seqlen_k,
        causal=seen.causal,
        window_size=(seen.window_left, seen.window_right),
    )
    return attended


def varlen(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    """torch's own varlen kernel; GPU, float16 or bfloat16."""
    if not takes(packed, mask):
        return padded(q, k, v, packed, mask)
    return attend_varlen(q, k, v, varlen_batch(packed, mask))


def padded(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    """torch's fused attention on padded texts: any GPU, any type, and any mask, with a bias too."""
    key = padded, q.dtype, mask.causal, mask.window, id(mask.bias), id(mask.slopes)
    if key not in packed.made:
        packed.made[key] = list(_padded(packed, mask, q.dtype))
    if k.size(1) < q.size(1):  # the kernels for masks want as many heads of keys
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    attended = []
    for part in packed.made[key]:
        queries, keys, values = (x[part.places].transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(queries, keys, values, part.additive, is_causal=part.causal)
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
    additive: Tensor | None
    """What is added to the scores, [1 or texts, 1 or heads, 1 or longest, longest]; None: nothing."""


def _padded(packed: Packed, mask: AttentionMask, dtype: torch.dtype) -> Iterator[_Padded]:
    """The batch in parts, made once for all layers."""
    device = packed.device
    order = np.argsort(packed.places)
    lengths, starts = packed.lengths[order], packed.starts[order]
    seen = np.repeat([group.seen for group in packed.groups], [group.texts for group in packed.groups])
    for some in (slice(each.start, each.stop) for each in buckets(lengths.tolist(), squares=SQUARES)):
        token = np.arange(lengths[some][-1])
        inside, attended = token < lengths[some, None], token < seen[some, None]
        causal = mask.causal and mask.whole and bool((seen[some] == lengths[some]).all())
        yield _Padded(
            moved(starts[some, None] + np.where(inside, token, 0), device),
            moved(np.flatnonzero(inside), device),
            causal,
            None if causal else _additive(mask, attended, device, dtype),
        )


def _additive(
    mask: AttentionMask, attended: npt.NDArray[np.bool_], device: torch.device, dtype: torch.dtype
) -> Tensor | None:
    """What is added to the scores of padded texts; ``attended`` [texts, n]: the keys that are, but for the mask."""
    length = attended.shape[1]
    additive = _bias(mask, length, device, dtype)
    if not attended.all():
        additive = _hidden(additive, moved(~attended[:, None, None], device), dtype)
    if mask.causal or mask.window is not None:
        additive = _hidden(additive, _unseen(mask, length, device), dtype)
    return additive


def _hidden(additive: Tensor | None, hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added, and minus infinity where ``hidden``."""
    more = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return more if additive is None else additive + more


def _unseen(mask: AttentionMask, length: int, device: torch.device) -> Tensor:
    """[1, 1, length, length]: which keys a query does not see for its direction and its window.

    Made of one byte each: of distances in int64 a text of 32,768 tokens would have 8 GB.
    """
    side = length if mask.window is None else mask.window
    seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).triu_(-side)
    return seen.tril_(0 if mask.causal else side).logical_not_()


def _bias(mask: AttentionMask, length: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """[1, heads, length, length]."""
    if mask.slopes is not None:
        places = torch.arange(length, device=device)
        return sloped(mask.slopes, places, places).to(dtype)[None]
    return None if mask.bias is None else mask.bias[None, :, :length, :length].to(dtype)
