"""Attention for GPUs, on a CPU: padded texts give what the CPU's gives, in few calls; which kernel is taken."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sie_bundle.engine import attention
from sie_bundle.engine.attention import Attend, flash, kernel, padded, varlen
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.layer import passed_varlen_at_once
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.positions import slopes
from sie_bundle.engine.row import Row, row

CPU, HEADS, LONGEST = torch.device("cpu"), 4, 100
MASKS = {
    "full": AttentionMask(),
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(window=8),
    "causal window": AttentionMask(causal=True, window=8),
    "slopes": AttentionMask(slopes=slopes(HEADS, CPU)),
    "bias": AttentionMask(bias=torch.randn(HEADS, 112, 112, generator=torch.Generator().manual_seed(2))),
}
texts = st.tuples(st.integers(1, LONGEST), st.integers(0, 8)).map(lambda text: (text[0], max(1, text[0] - text[1])))


def packed_of(some: list[tuple[int, int]]) -> Packed:
    """Texts of a length, of which so many tokens are attended to."""
    return pack([Row(np.full(length, 4), length, seen) for length, seen in some], CPU)


def states(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, tokens, HEADS, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    return q, k, v


@pytest.mark.parametrize("kind", MASKS)
@settings(deadline=None)
@given(some=st.lists(texts, min_size=1, max_size=12))
def test_it_gives_what_the_cpus_gives_whatever_is_padded_with_what(kind: str, some: list[tuple[int, int]]) -> None:
    packed = packed_of(some)
    q, k, v = states(len(packed.ids))
    near, far = attend(q, k, v, packed, MASKS[kind]), padded(q, k, v, packed, MASKS[kind])
    assert (near - far).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["full", "causal", "window", "causal window"])
def test_queries_may_share_their_keys(kind: str) -> None:
    packed = packed_of([(length, length) for length in (3, 40, 40, 100)])
    q, k, v = states(183)
    near, far = (each(q, k[:, :2], v[:, :2], packed, MASKS[kind]) for each in (attend, padded))
    assert (near - far).abs().max() < 1e-5


@pytest.mark.parametrize("kind", MASKS)
def test_it_does_in_half_precision(kind: str) -> None:
    packed = packed_of([(length, length) for length in (3, 40, 40, 100)])
    q, k, v = states(183, torch.bfloat16)
    near, far = attend(q, k, v, packed, MASKS[kind]), padded(q, k, v, packed, MASKS[kind])
    assert far.dtype is torch.bfloat16
    assert (near.float() - far.float()).abs().max() < 0.05


def test_a_hundred_lengths_take_few_calls_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
        calls.append(len(q))
        return scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    packed = pack([row([4] * length) for length in range(1, LONGEST + 1)], CPU)
    q, k, v = states(len(packed.ids))
    for _ in range(2):
        padded(q, k, v, packed, MASKS["slopes"])
    assert sum(calls) == 2 * LONGEST and len(calls) < LONGEST / 2
    assert len(packed.made) == 1, "made once"


@pytest.mark.parametrize(
    ("capability", "dtype", "own", "library", "taken"),
    [
        ((9, 0), torch.bfloat16, True, False, varlen),
        ((8, 0), torch.float16, True, True, varlen),
        ((9, 0), torch.bfloat16, False, True, flash),
        ((9, 0), torch.bfloat16, False, False, padded),
        ((9, 0), torch.float32, True, True, padded),
        ((7, 5), torch.float16, True, True, padded),
    ],
    ids=["Hopper", "Ampere", "torch without it", "neither", "float32", "a T4"],
)
def test_a_varlen_kernel_is_taken_where_there_is_one(
    capability: tuple[int, int],
    dtype: torch.dtype,
    own: bool,
    library: bool,
    taken: Attend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: own)
    monkeypatch.setattr(attention, "find_spec", lambda name: ModuleSpec(name, None) if library else None)
    assert kernel(torch.device("cuda"), dtype) is taken
    assert kernel(CPU, dtype) is attend


def documented(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """What flash-attention says of its ``flash_attn_varlen_func``, text by text; masks are aligned at the right."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == cu_seqlens_k.diff().max()
    found, group = torch.empty_like(q), q.shape[1] // k.shape[1]
    for (begin, end), (first, last) in zip(pairwise(cu_seqlens_q), pairwise(cu_seqlens_k), strict=True):
        queries, keys = int(end - begin), int(last - first)
        ahead = torch.arange(keys)[None] - (torch.arange(queries)[:, None] + keys - queries)
        before, behind = window_size[0], 0 if causal else window_size[1]
        seen = torch.ones(queries, keys, dtype=torch.bool)
        seen &= ahead >= -before if before >= 0 else True
        seen &= ahead <= behind if behind >= 0 else True
        own_keys, own_values = (x[first:last].repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        each = scaled_dot_product_attention(q[begin:end].transpose(0, 1), own_keys, own_values, seen)
        found[begin:end] = each.transpose(0, 1)
    return found


def torchs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
) -> list[Tensor]:
    """torch's operator for the same kernel, which takes heads of whole eights and gives more than the result."""
    assert q.shape[2] % 8 == 0 and (dropout, debug) == (0.0, False)
    q = q * scale * q.shape[2] ** 0.5
    window = window_size_left, window_size_right
    return [
        documented(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, window_size=window)
    ]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("key_heads", [HEADS, 2])
@pytest.mark.parametrize("by", [flash, varlen])
def test_each_varlen_kernel_is_called_as_it_is_documented(
    by: Attend, kind: str, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("flash_attn")
    library.flash_attn_varlen_func = documented  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", torchs)
    for hidden in (0, 2, 90):  # of a query's augmentation, at which its own tokens do not look
        packed = packed_of([(length, max(1, length - hidden)) for length in (3, 40, 40, 100)])
        q, k, v = states(len(packed.ids))
        near, far = (each(q, k[:, :key_heads], v[:, :key_heads], packed, MASKS[kind]) for each in (attend, by))
        assert (near - far).abs().max() < 1e-5


def test_layers_with_a_varlen_kernel_compile_as_one_call_without_a_gpu() -> None:
    assert callable(passed_varlen_at_once())  # torch refuses what it does not compile
