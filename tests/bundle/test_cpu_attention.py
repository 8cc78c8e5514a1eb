"""Attention on a CPU against plain softmax, text by text: every mask, any length, with room behind it or without."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.cpu_attention import FEW, STEP, attend, attended, attended_at_once, room, view
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.row import Row
from sie_bundle.models.packed_encoder import rounded

CPU = torch.device("cpu")
HEADS, KEY_HEADS, SIZE = 4, 2, 8
DTYPES = [torch.float32, torch.bfloat16]

lengths = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 150)), min_size=1, max_size=20)


def packed_of(sizes: list[int], hidden: int = 0) -> Packed:
    return pack([Row(np.arange(n), n, max(1, n - hidden)) for n in sizes], CPU)


def random(packed: Packed, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = len(packed.ids)
    q = torch.randn(tokens, HEADS, SIZE, generator=generator) * scale
    k, v = (torch.randn(tokens, KEY_HEADS, SIZE, generator=generator) for _ in range(2))
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    """Softmax in float64, one text at a time."""
    out = torch.zeros_like(q, dtype=torch.float64)
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1).double() for x in (k, v))
    for group in packed.groups:
        for text in range(group.texts):
            own = slice(group.start + text * group.length, group.start + (text + 1) * group.length)
            scores = torch.einsum("qhd,khd->hqk", q[own].double(), k[own]) / math.sqrt(SIZE)
            if mask.slopes is not None:
                places = torch.arange(group.length)
                scores += mask.slopes[:, None, None].double() * (places[:, None] - places).abs()
            elif mask.bias is not None:
                scores += mask.bias[:, : group.length, : group.length].double()
            distance = torch.arange(group.length)[None] - torch.arange(group.length)[:, None]
            unseen = (torch.arange(group.length) >= group.seen)[None] | torch.zeros_like(distance, dtype=torch.bool)
            if mask.causal:
                unseen = unseen | (distance > 0)
            if mask.window is not None:
                unseen = unseen | (distance.abs() > mask.window)
            out[own] = torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -math.inf).softmax(-1), v[own])
    return out


def attended_together(qkv: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    q, k, v = torch.split(qkv, [HEADS, KEY_HEADS, KEY_HEADS], dim=1)
    return attend(q, k, v, packed, mask)


def close(sizes: list[int], mask: AttentionMask, seed: int = 0, *, hidden: int = 0, scale: float = 1.0) -> None:
    """Both types, with room for whole sixteens behind the last text and without, are plain softmax's."""
    packed = packed_of(sizes, hidden)
    q, k, v = random(packed, seed, scale)
    expected = plain(q, k, v, packed, mask)
    for extra in (0, 3, room(packed) - len(q)):
        # As they come from one layer for all three, with rows behind the last text.
        together = torch.nn.functional.pad(torch.cat([q, k, v], dim=1), (0, 0, 0, 0, 0, extra))
        exact = attended_together(together, packed, mask)
        assert exact.is_contiguous() and exact.shape == (len(q) + extra, HEADS, SIZE)
        assert (exact[: len(q)] - expected).abs().max() < 1e-5
        assert not exact[len(q) :].any()
        near = attended_together(together.bfloat16(), packed, mask)
        assert (near[: len(q)] - expected).norm(dim=(1, 2)).div(expected.norm(dim=(1, 2))).max() < 0.05


@settings(max_examples=100, deadline=None)
@given(
    sizes=lengths,
    causal=st.booleans(),
    hidden=st.integers(0, 3),
    window=st.one_of(st.none(), st.integers(1, 70)),
    sloped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_mask_equals_plain_softmax(
    sizes: list[int], causal: bool, hidden: int, window: int | None, sloped: bool, seed: int
) -> None:
    slopes = -torch.tensor([0.5, 0.25, 0.125, 0.01]) if sloped else None
    hidden = 0 if window else hidden  # no token without one that it sees
    close(sizes, AttentionMask(causal=causal, window=window, slopes=slopes), seed, hidden=hidden)


@settings(max_examples=30, deadline=None)
@given(sizes=lengths, causal=st.booleans(), sloped=st.booleans(), dtype=st.sampled_from(DTYPES))
def test_step_by_step_it_computes_the_same(sizes: list[int], causal: bool, sloped: bool, dtype: torch.dtype) -> None:
    packed = packed_of(sizes)
    mask = AttentionMask(causal=causal, slopes=-torch.tensor([0.5, 0.25, 0.125, 0.01]) if sloped else None)
    q, k, v = (x.to(dtype) for x in random(packed, 0))
    seen = view(packed, mask, dtype, len(q))
    assert torch.equal(attended_at_once()(q, k, v, seen), attended(q, k, v, seen))


@settings(max_examples=30, deadline=None)
@given(sizes=lengths, hidden=st.integers(0, 2), seed=st.integers(0, 99))
def test_a_bias_by_distance_is_added(sizes: list[int], hidden: int, seed: int) -> None:
    longest = max(sizes) + STEP
    bias = torch.randn(HEADS, longest, longest, generator=torch.Generator().manual_seed(seed))
    close(sizes, AttentionMask(bias=bias), seed, hidden=hidden)


def test_a_long_text_is_attended_to_in_parts() -> None:
    slopes = -torch.tensor([0.5, 0.25, 0.125, 0.01])
    for mask in (AttentionMask(window=64), AttentionMask(causal=True, window=100), AttentionMask(slopes=slopes)):
        packed = packed_of([3, 2000])
        assert len(view(packed, mask, torch.float32, room(packed)).parts) > 2
        close([3, 2000], mask)


def test_scores_in_the_hundreds_keep_their_weights() -> None:
    packed = packed_of([40, 7])
    q, k, v = random(packed, 0, scale=30.0)
    assert (attend(q, k, v, packed, AttentionMask()) - plain(q, k, v, packed, AttentionMask())).abs().max() < 1e-3


def test_a_token_far_below_another_is_no_reason_to_give_up() -> None:
    packed = packed_of([1, 2])
    q, k, v = (torch.ones(3, 1, 8) for _ in range(3))
    q[1], k[1], k[2] = 20.0, -1.0, 1.0
    for dtype in DTYPES:
        assert torch.isfinite(attend(q.to(dtype), k.to(dtype), v.to(dtype), packed, AttentionMask())).all()


@given(sizes=lengths)
def test_with_room_every_text_is_computed_in_whole_sixteens_and_without_only_the_last_are_not(sizes: list[int]) -> None:
    packed = packed_of(sizes)
    for part in view(packed, AttentionMask(), torch.float32, room(packed)).parts:
        assert part.last == part.high and part.high % STEP == 0 and part.high < part.length + STEP
        assert part.start + (part.texts - 1) * part.length + part.high <= room(packed)
    for part in view(packed, AttentionMask(), torch.float32, len(packed.ids)).parts:
        whole = part.high % STEP == 0 and part.high < part.length + STEP
        assert whole or (part.high == part.length and part.start + part.texts * part.length > len(packed.ids) - STEP)
        assert part.start + (part.texts - 1) * part.length + part.high <= len(packed.ids)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60), extra=st.integers(0, 40))
def test_short_texts_of_many_lengths_take_three_calls_at_most_in_bfloat16(sizes: list[int], extra: int) -> None:
    packed = packed_of(sizes)
    short = [size for size in sizes if size <= STEP]
    parts = view(packed, AttentionMask(), torch.bfloat16, len(packed.ids) + extra).parts
    calls = sum(part.start < sum(short) for part in parts)
    assert calls <= 3 if len(set(short)) > FEW else calls == len(set(short))
    assert len(parts) - calls == len(set(sizes) - set(short))


@given(st.integers(1, 100_000), st.sampled_from([1, 8, 16, 64]))
def test_rounding_adds_an_eighth_at_most_or_one_step(number: int, step: int) -> None:
    found = rounded(number, step)
    assert number <= found < number + max(step, number / 8 + 1)
    assert rounded(found, step) == found
