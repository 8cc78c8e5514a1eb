"""Attention on a CPU: torch's fused kernel once for each length, or batched matrix products tile by tile.

In bfloat16 the products, whose scores stay in the cache, are up to twice as fast on one thread; in float32 the fused
kernel is, by a quarter to two fifths. What that is worth for a whole pass, ``bench/engine.py`` shows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from sie_bundle.engine.packing import Packed
from sie_bundle.engine.sight import Sight, Slopes
from sie_bundle.engine.tiles import Tile, tiles

SCORES = 1 << 19
"""Scores computed at a time: a core's cache holds them twice in bfloat16."""

ALONE = 64
"""Tokens of a text that is computed by itself in one call, with torch's own kernel."""

FAR = -30_000.0
"""What is added to the scores of a token nobody sees: 2 to its power is 0."""


def attend(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight, *, by_maximum: bool = False) -> Tensor:
    """See `attention.Attend`; ``by_maximum``: see `tiled`."""
    whole = packed.keys is None and sight.window is None and sight.bias is None
    one_call = len(packed.lengths) == 1 and packed.longest <= ALONE
    if whole and (one_call or q.dtype is torch.float32):
        return by_length(q, k, v, packed, sight)
    return tiled(q, k, v, packed, sight, by_maximum=by_maximum)


def by_length(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight) -> Tensor:
    """See `attention.Attend`; a token sees its whole text, or with ``sight.causal`` all before it."""
    parts = []
    for group in packed.groups:
        queries, keys, values = (group.view(x).transpose(1, 2) for x in (q, k, v))
        attended = scaled_dot_product_attention(
            queries, keys, values, is_causal=sight.causal, scale=math.log(2), enable_gqa=k.shape[1] < q.shape[1]
        )
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out if len(out) == len(q) else pad(out, (0, 0, 0, 0, 0, len(q) - len(out)))


def tiled(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight, *, by_maximum: bool = False) -> Tensor:
    """See `attention.Attend`.

    A row's weights do not change when its scores shift together, and must shift for 2 ** score to stay within the range
    of the numbers. By the largest score, as usual, costs as much as the powers themselves. The token's score with
    itself is as good unless another is larger by 127, and costs nothing: it goes in as one more dimension of queries
    and keys. Where it was not as good the result is not finite, and ``by_maximum`` is the way. A second dimension
    takes what nobody sees out of sight.
    """
    if (share := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
    cut = _cut(packed, q.dtype)
    tokens = len(cut.far) - 1
    q, k, v = q[:tokens], k[:tokens], v[:tokens]
    queries = _by_head(q, (-(q * k).sum(-1).t(), q.new_ones(())))
    keys = _by_head(k, (k.new_ones(()), cut.far))
    values = _by_head(v, ())
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for tile in cut.tiles:
        attended = _attend(tile, tile.gather(queries), tile.gather(keys), tile.gather(values), cut, sight, by_maximum)
        out[tile.start : tile.stop] = tile.scatter(attended)
    return out if tokens == cut.length else pad(out, (0, 0, 0, 0, 0, cut.length - tokens))


class _Cut(NamedTuple):
    """A batch cut into tiles, and what of it every layer needs."""

    tiles: list[Tile]
    far: Tensor
    """[tokens + 1]: `FAR` for tokens nobody sees and for no token, 0 for the others."""
    length: int
    """Rows of the batch, those that round it up included."""
    masks: dict[tuple[int, bool, int | None], Tensor | None]
    """By tile and sight; filled by the first layer that needs one."""


def _cut(packed: Packed, dtype: torch.dtype) -> _Cut:
    known = packed.made.get(dtype)
    if known is None:
        tokens = int(packed.lengths.sum())
        far = torch.full((tokens + 1,), FAR, dtype=dtype)
        far[slice(tokens) if packed.keys is None else packed.keys.tokens] = 0
        # torch's own products, which serve float32, are not compiled by size.
        known = _Cut(tiles(packed, 16 if dtype == torch.bfloat16 else 1), far, len(packed.ids), {})
        packed.made[dtype] = known
    assert isinstance(known, _Cut)
    return known


def _attend(
    tile: Tile, queries: Tensor, keys: Tensor, values: Tensor, cut: _Cut, sight: Sight, by_maximum: bool
) -> Tensor:
    """[heads * blocks, size, head_dim], the part of each token in its own text."""
    mask = _mask(tile, cut, sight, queries.dtype)
    rows = tile.size if tile.blocks > 1 else max(16, SCORES // (len(queries) * tile.size))
    parts = []
    for first in range(0, tile.size, rows):
        some = range(first, min(first + rows, tile.size))
        seen = sight.seen_by(some, tile.size)
        scores = torch.bmm(queries[:, some.start : some.stop], keys[:, seen.start : seen.stop].transpose(1, 2))
        if sight.bias is not None:
            scores = _biased(scores, tile, sight.bias, some, seen)
        if mask is not None:
            own = mask[:, some.start : some.stop, seen.start : seen.stop]
            scores.view(-1, *own.shape).add_(own)
        if by_maximum:
            scores -= scores.amax(-1, keepdim=True)
        weights = torch.exp2(scores, out=scores)
        total = weights.sum(-1, keepdim=True)
        parts.append(torch.bmm(weights.to(values.dtype), values[:, seen.start : seen.stop]).div_(total))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _mask(tile: Tile, cut: _Cut, sight: Sight, dtype: torch.dtype) -> Tensor | None:
    key = (tile.start, sight.causal, sight.window)
    if key not in cut.masks:
        cut.masks[key] = tile.hidden(sight, dtype)
    return cut.masks[key]


def _biased(scores: Tensor, tile: Tile, bias: Tensor | Slopes, some: range, seen: range) -> Tensor:
    """The scores with their part of the bias: of the queries ``some`` and the keys ``seen``."""
    if isinstance(bias, Slopes):
        queries, keys = tile.places[:, some.start : some.stop], tile.places[:, seen.start : seen.stop]
        # In float32: far away it is a number that bfloat16 knows to a quarter only.
        return scores.float().add_(bias.between(queries, keys).flatten(0, 1))
    return scores.add_(_bias(tile, bias)[:, some.start : some.stop, seen.start : seen.stop])


def _bias(tile: Tile, bias: Tensor) -> Tensor:
    """[heads, longest, longest] by place as [heads * blocks, size, size] by token."""
    if tile.real is None:
        return pad(bias, (0, max(0, tile.size - bias.shape[2]), 0, max(0, tile.size - bias.shape[1])))
    return bias[:, tile.places[:, :, None], tile.places[:, None]].flatten(0, 1)


def _by_head(x: Tensor, more: tuple[Tensor, ...]) -> Tensor:
    """[T, heads, size] as [heads, T + 1, size + len(more)]: ``more`` behind, and a row of zeros for no token."""
    tokens, heads, size = x.shape
    out = x.new_zeros(heads, tokens + 1, size + len(more))
    out[:, :tokens, :size] = x.transpose(0, 1)
    for number, values in enumerate(more):
        own = out[..., size + number]
        if values.dim() and values.shape[-1] == tokens:
            own = own[:, :tokens]
        own.copy_(values.expand_as(own))
    return out
