"""Attention on a CPU against plain softmax, text by text: every sight, rounded tiles, scores out of the usual range."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sie_bundle.engine import cpu_attention
from sie_bundle.engine.attention import LOG2_E
from sie_bundle.engine.cpu_attention import attend, attended, attended_at_once, grouped
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.sight import Sight
from sie_bundle.engine.tiles import BLOCKS, TOGETHER, gathered, rounded, scattered, tiles
from sie_bundle.engine.tokenization import Row

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


def tiled(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight, *, by_maximum: bool = False) -> Tensor:
    return attended_at_once()(q, k, v, cpu_attention.tiled(packed, sight, q.dtype), by_maximum)


def plain(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """Softmax over e ** score, in float64, one text at a time."""
    out = torch.zeros_like(q, dtype=torch.float64)
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, dim=1).double() for x in (k, v))
    for group in packed.groups:
        for text in range(group.texts):
            own = slice(group.start + text * group.length, group.start + (text + 1) * group.length)
            scores = torch.einsum("qhd,khd->hqk", q[own].double(), k[own])
            if sight.slopes is not None:
                places = torch.arange(group.length)
                scores += sight.slopes[:, None, None].double() * (places[:, None] - places).abs() / LOG2_E
            elif sight.bias is not None:
                scores += sight.bias[:, : group.length, : group.length].double() / LOG2_E
            distance = torch.arange(group.length)[None] - torch.arange(group.length)[:, None]
            unseen = (torch.arange(group.length) >= group.seen)[None] | torch.zeros_like(distance, dtype=torch.bool)
            if sight.causal:
                unseen = unseen | (distance > 0)
            if sight.window is not None:
                unseen = unseen | (distance.abs() > sight.window)
            out[own] = torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, -math.inf).softmax(-1), v[own])
    return out


@settings(max_examples=60, deadline=None)
@given(sizes=lengths, causal=st.booleans(), window=st.one_of(st.none(), st.integers(1, 70)), seed=st.integers(0, 99))
def test_every_sight_equals_plain_softmax(sizes: list[int], causal: bool, window: int | None, seed: int) -> None:
    packed, sight = packed_of(sizes), Sight(causal=causal, window=window)
    q, k, v = random(packed, seed)
    expected = plain(q, k, v, packed, sight)
    for by_maximum in (False, True):
        found = tiled(q * LOG2_E, k, v, packed, sight, by_maximum=by_maximum)
        assert (found - expected).abs().max() < 1e-5


@settings(max_examples=60, deadline=None)
@given(sizes=lengths, causal=st.booleans(), extra=st.integers(0, 9), seed=st.integers(0, 99))
def test_a_call_for_each_length_equals_plain_softmax(sizes: list[int], causal: bool, extra: int, seed: int) -> None:
    packed, sight = packed_of(sizes), Sight(causal=causal)
    q, k, v = random(packed, seed)
    expected = plain(q, k, v, packed, sight)
    # As they come from one layer for all three, with rows behind the last text.
    together = torch.nn.functional.pad(torch.cat([q * LOG2_E, k, v], dim=1), (0, 0, 0, 0, 0, extra))
    queries, keys, values = torch.split(together, [HEADS, KEY_HEADS, KEY_HEADS], dim=1)
    found = attended_at_once()(queries, keys, values, grouped(packed, sight), False)
    assert found.is_contiguous()
    assert (found[: len(q)] - expected).abs().max() < 1e-5
    assert not found[len(q) :].any()


@settings(max_examples=60, deadline=None)
@given(
    sizes=lengths,
    causal=st.booleans(),
    hidden=st.integers(0, 2),
    window=st.one_of(st.none(), st.integers(1, 70)),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_whichever_way_is_taken_every_sight_is_kept(
    sizes: list[int], causal: bool, hidden: int, window: int | None, biased: bool, seed: int
) -> None:
    packed = packed_of(sizes, 0 if causal or window else hidden)  # no token without one that it sees
    slopes = -torch.tensor([0.5, 0.25, 0.125, 0.01]) if biased else None
    sight = Sight(causal=causal, window=window, slopes=slopes)
    q, k, v = random(packed, seed)
    expected = plain(q, k, v, packed, sight)
    assert (attend(q * LOG2_E, k, v, packed, sight) - expected).abs().max() < 1e-5
    near = attend((q * LOG2_E).bfloat16(), k.bfloat16(), v.bfloat16(), packed, sight)
    assert (near - expected).norm() < 0.03 * expected.norm()


@settings(max_examples=30, deadline=None)
@given(
    sizes=lengths, causal=st.booleans(), sloped=st.booleans(), dtype=st.sampled_from([torch.float32, torch.bfloat16])
)
def test_step_by_step_it_computes_the_same(sizes: list[int], causal: bool, sloped: bool, dtype: torch.dtype) -> None:
    packed = packed_of(sizes)
    sight = Sight(causal=causal, slopes=-torch.tensor([0.5, 0.25, 0.125, 0.01]) if sloped else None)
    q, k, v = (x.to(dtype) for x in random(packed, 0))
    for seen in (cpu_attention.tiled(packed, sight, dtype), cpu_attention.view(packed, sight, dtype)):
        assert torch.equal(attended_at_once()(q, k, v, seen, False), attended(q, k, v, seen, by_maximum=False))


@settings(max_examples=30, deadline=None)
@given(sizes=lengths, seed=st.integers(0, 99))
def test_what_nobody_sees_changes_nothing(sizes: list[int], seed: int) -> None:
    packed = packed_of(sizes, hidden=3)
    q, k, v = random(packed, seed)
    assert (tiled(q * LOG2_E, k, v, packed, Sight()) - plain(q, k, v, packed, Sight())).abs().max() < 1e-5


@settings(max_examples=30, deadline=None)
@given(sizes=lengths, seed=st.integers(0, 99))
def test_a_bias_by_distance_is_added(sizes: list[int], seed: int) -> None:
    packed = packed_of(sizes)
    q, k, v = random(packed, seed)
    sight = Sight(bias=torch.randn(HEADS, max(sizes), max(sizes), generator=torch.Generator().manual_seed(seed)))
    assert (tiled(q * LOG2_E, k, v, packed, sight) - plain(q, k, v, packed, sight)).abs().max() < 1e-5


@settings(max_examples=30, deadline=None)
@given(sizes=lengths, seed=st.integers(0, 99))
def test_a_slope_by_distance_is_added(sizes: list[int], seed: int) -> None:
    packed, sight = packed_of(sizes, hidden=2), Sight(slopes=-torch.tensor([0.5, 0.25, 0.125, 0.01]))
    q, k, v = random(packed, seed)
    expected = plain(q, k, v, packed, sight)
    for by_maximum in (False, True):
        found = tiled(q * LOG2_E, k, v, packed, sight, by_maximum=by_maximum)
        assert (found - expected).abs().max() < 1e-5


def test_a_long_text_is_attended_to_in_parts() -> None:
    packed = packed_of([3, 2000])
    q, k, v = random(packed, 0)
    for sight in (Sight(), Sight(causal=True), Sight(window=64), Sight(causal=True, window=100)):
        assert (tiled(q * LOG2_E, k, v, packed, sight) - plain(q, k, v, packed, sight)).abs().max() < 1e-5


def test_scores_in_the_hundreds_keep_their_weights() -> None:
    packed = packed_of([40, 7])
    q, k, v = random(packed, 0, scale=30.0)
    expected = plain(q, k, v, packed, Sight())
    found = tiled(q * LOG2_E, k, v, packed, Sight(), by_maximum=True)
    assert (found - expected).abs().max() < 1e-3


def test_where_the_token_itself_is_far_below_another_the_result_says_so() -> None:
    packed = packed_of([1, 2])
    q, k, v = (torch.ones(3, 1, 8) for _ in range(3))
    q[1], k[1], k[2] = 20.0, -1.0, 1.0
    assert not torch.isfinite(tiled(q, k, v, packed, Sight())).all()
    assert torch.isfinite(tiled(q, k, v, packed, Sight(), by_maximum=True)).all()


@settings(max_examples=100, deadline=None)
@given(sizes=lengths)
def test_every_token_is_in_one_tile_and_comes_back_from_it(sizes: list[int]) -> None:
    packed = packed_of(sizes)
    made = tiles(packed, 16)
    x = torch.randn(3, len(packed.ids) + 1, 5)
    back = torch.cat([scattered(tile, gathered(tile, x)) for tile in sorted(made, key=lambda tile: tile.start)])
    assert torch.equal(back, x[:, :-1].transpose(0, 1))


@given(sizes=lengths)
def test_tiles_have_few_sizes_and_no_more_room_than_they_need(sizes: list[int]) -> None:
    for tile in tiles(packed_of(sizes), 16):
        longest = tile.stop - tile.start
        if tile.blocks > 1 or tile.real is not None:
            assert tile.size in [size for _, size in BLOCKS] and tile.blocks * tile.size <= TOGETHER
        else:
            assert tile.size in (rounded(longest, 8), rounded(longest, 16))


@given(st.integers(1, 100_000), st.sampled_from([1, 8, 16, 64]))
def test_rounding_adds_an_eighth_at_most_or_one_step(number: int, step: int) -> None:
    found = rounded(number, step)
    assert number <= found < number + max(step, number / 8 + 1)
    assert rounded(found, step) == found
