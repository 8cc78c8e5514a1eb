"""Attention on a CPU: torch's fused kernel once for each length, or batched matrix products tile by tile.

In bfloat16 the products, whose scores stay in the cache, are up to twice as fast on one thread; in float32 the fused
kernel is, by a quarter to two fifths. What that is worth for a whole pass, ``bench/engine.py`` shows.

Owns which of them a batch is computed with, and what they need of it (`View`), made once for all layers. `attended` and
what it calls is compiled, for ``layer`` together with the layers.
"""

# No annotations from the future: ``compiled``.
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine.compiled import compiled
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.sight import Sight, seen_by, sloped
from sie_bundle.engine.tiles import Tile, gathered, hidden, scattered, tiles

ALONE = 64
"""Tokens of a text that is computed by itself in one call, with torch's own kernel."""

FAR = -30_000.0
"""What is added to the scores of a token nobody sees: 2 to its power is 0."""


class View(NamedTuple):
    """A batch as attention with one sight needs it."""

    sight: Sight
    groups: list[tuple[int, int, int]]
    """Where each begins, its texts, and the tokens of each; for one call of torch's kernel each. Empty: by tiles."""
    tiles: list[Tile]
    masks: list[Tensor | None]
    """Of each tile."""
    far: Tensor
    """[tokens + 1]: `FAR` for tokens nobody sees and for no token, 0 for the others. Without tiles, empty."""


def view(packed: Packed, sight: Sight, dtype: torch.dtype) -> View:
    """A batch of queries, keys and values of that type, made once."""
    one_call = len(packed.lengths) == 1 and packed.longest <= ALONE
    if packed.keys is None and sight.whole and (one_call or dtype is torch.float32):
        return grouped(packed, sight)
    return tiled(packed, sight, dtype)


def grouped(packed: Packed, sight: Sight) -> View:
    """For texts of equal length together. A token sees its whole text, or with ``sight.causal`` all before it."""
    groups = [(group.start, group.texts, group.length) for group in packed.groups]
    return View(sight, groups, [], [], torch.empty(0))


def tiled(packed: Packed, sight: Sight, dtype: torch.dtype) -> View:
    """For tiles, whatever is seen."""
    if dtype not in packed.made:
        tokens = int(packed.lengths.sum())
        far = torch.full((tokens + 1,), FAR, dtype=dtype)
        far[slice(tokens) if packed.keys is None else packed.keys.tokens] = 0
        # torch's own products, which serve float32, are not compiled by size.
        packed.made[dtype] = far, tiles(packed, 16 if dtype is torch.bfloat16 else 1)
    far, cut = packed.made[dtype]
    key = dtype, sight.causal, sight.window
    if key not in packed.made:
        packed.made[key] = [hidden(tile, sight, dtype) for tile in cut]
    return View(sight, [], cut, packed.made[key], far)


def attend(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight, *, by_maximum: bool = False) -> Tensor:
    """See `attention.Attend`; ``by_maximum``: see `by_tile`."""
    return attended_at_once()(q, k, v, view(packed, sight, q.dtype), by_maximum)


def attended(q: Tensor, k: Tensor, v: Tensor, seen: View, by_maximum: bool) -> Tensor:
    """q [T, heads, head_dim], k and v [T, key heads, head_dim] to [T, heads, head_dim]: zeros behind the last text."""
    out = by_tile(q, k, v, seen, by_maximum) if len(seen.tiles) > 0 else by_length(q, k, v, seen)
    more = q.size(0) - out.size(0)
    return torch.constant_pad_nd(out, [0, 0, 0, 0, 0, more]) if more > 0 else out


def by_length(q: Tensor, k: Tensor, v: Tensor, seen: View) -> Tensor:
    """[tokens, heads, head_dim] by torch's fused kernel, a call for each group."""
    parts: list[Tensor] = []
    for start, texts, length in seen.groups:
        stop = start + texts * length
        queries = q[start:stop].view(texts, length, q.size(1), q.size(2)).transpose(1, 2)
        keys = k[start:stop].view(texts, length, k.size(1), k.size(2)).transpose(1, 2)
        values = v[start:stop].view(texts, length, v.size(1), v.size(2)).transpose(1, 2)
        out = torch.ops.aten.scaled_dot_product_attention(
            queries,
            keys,
            values,
            is_causal=seen.sight.causal,
            scale=math.log(2),
            enable_gqa=k.size(1) < q.size(1),
        )
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def by_tile(q: Tensor, k: Tensor, v: Tensor, seen: View, by_maximum: bool) -> Tensor:
    """[tokens, heads, head_dim] by matrix products, tile by tile.

    A row's weights do not change when its scores shift together, and must shift for 2 ** score to stay within the range
    of the numbers. By the largest score, as usual, costs as much as the powers themselves. The token's score with
    itself is as good unless another is larger by 127, and costs nothing: it goes in as one more dimension of queries
    and keys. Where it was not as good the result is not finite, and ``by_maximum`` is the way. A second dimension
    takes what nobody sees out of sight.
    """
    share = q.size(1) // k.size(1)
    if share > 1:
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    tokens, size = seen.far.size(0) - 1, q.size(2)
    q, k, v = q[:tokens], k[:tokens], v[:tokens]
    queries, keys, values = by_head(q, 2), by_head(k, 2), by_head(v, 0)
    queries[:, :tokens, size] = -(q * k).sum(-1).t()
    keys[:, :, size] = 1.0
    queries[:, :, size + 1] = 1.0
    keys[:, :, size + 1] = seen.far
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for tile, mask in zip(seen.tiles, seen.masks):  # noqa: B905  # torch compiles no strict one
        own = within(
            tile, gathered(tile, queries), gathered(tile, keys), gathered(tile, values), mask, seen.sight, by_maximum
        )
        out[tile.start : tile.stop] = scattered(tile, own)
    return out


def within(
    tile: Tile, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sight: Sight, by_maximum: bool
) -> Tensor:
    """[heads * blocks, size, head_dim]: the part of each token in its own text."""
    rows = tile.size if tile.blocks > 1 else max(16, tile.queries // queries.size(0))
    parts: list[Tensor] = []
    for first in range(0, tile.size, rows):
        last = min(first + rows, tile.size)
        low, high = seen_by(first, last, tile.size, sight.causal, sight.window)
        scores = torch.bmm(queries[:, first:last], keys[:, low:high].transpose(1, 2))
        slopes, bias = sight.slopes, sight.bias
        if slopes is not None:
            far = sloped(slopes, tile.places[:, first:last], tile.places[:, low:high])
            # In float32: far away it is a number that bfloat16 knows to a quarter only.
            scores = scores.float().add_(far.flatten(0, 1))
        elif bias is not None:
            scores = scores.add_(bias_of(tile, bias)[:, first:last, low:high])
        if mask is not None:
            own = mask[:, first:last, low:high]
            scores.view(-1, own.size(0), own.size(1), own.size(2)).add_(own)
        if by_maximum:
            scores = scores - scores.amax(-1, keepdim=True)
        weights = torch.exp2_(scores)
        total = weights.sum(-1, keepdim=True)
        parts.append(torch.bmm(weights.to(values.dtype), values[:, low:high]).div_(total))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def bias_of(tile: Tile, bias: Tensor) -> Tensor:
    """[heads, longest, longest] by place as [heads * blocks, size, size] by token."""
    if tile.real is None:
        return torch.constant_pad_nd(bias, [0, max(0, tile.size - bias.size(2)), 0, max(0, tile.size - bias.size(1))])
    return bias[:, tile.places[:, :, None], tile.places[:, None]].flatten(0, 1)


def by_head(x: Tensor, more: int) -> Tensor:
    """[T, heads, size] as [heads, T + 1, size + more]: what is more is to be filled, and a row for no token is zero."""
    tokens, size = x.size(0), x.size(2)
    out = x.new_zeros([x.size(1), tokens + 1, size + more])
    out[:, :tokens, :size] = x.transpose(0, 1)
    return out


STEPS = (by_length, by_tile, within, bias_of, by_head, gathered, scattered, seen_by, sloped)
"""What `attended` calls."""


@functools.cache
def attended_at_once() -> Callable[[Tensor, Tensor, Tensor, View, bool], Tensor]:
    """`attended`, compiled when it is first needed by itself."""
    return compiled(attended, *STEPS)
