"""Attention on a CPU: matrix products over texts of equal length, in tiles whose scores stay in its cache.

Measured (``bench/engine.py``) against torch's own fused kernel for CPUs: two to three times as fast in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.packing import Group, Packed
from sie_bundle.sight import Sight

SCORES = 1 << 19
"""Scores computed at a time: a core's cache holds them twice in bfloat16."""


def grouped(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sight: Sight, *, by_maximum: bool = False) -> Tensor:
    """See `attention.Attend`.

    A row's weights do not change when its scores shift together, and must shift for 2 ** score to stay within the range
    of the numbers. By the largest score, as usual, costs as much as the powers themselves. The token's score with
    itself is as good unless another is larger by 127, and costs nothing: it goes in as one more dimension of queries
    and keys. Where it was not as good the result is not finite, and ``by_maximum`` is the way.
    """
    if (share := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
    queries = _by_head(q, -(q * k).sum(-1))
    keys = _by_head(k, q.new_ones(()))
    values = v.transpose(0, 1).contiguous()
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for group in packed.groups:
        for tile in _tiles(group, q.shape[1], sight.window):
            _attend(tile, queries, keys, values, out, sight, by_maximum)
    return out


class _Tile(NamedTuple):
    """The queries ``rows`` of some texts that lie side by side."""

    texts: Group
    rows: range

    def of(self, x: Tensor, tokens: range) -> Tensor:
        """[heads, T, size] as [heads * texts, tokens, size]; a single text is not copied."""
        start, texts, length, _ = self.texts
        if texts == 1:
            return x[:, start + tokens.start : start + tokens.stop]
        own = x[:, start : start + texts * length].view(len(x), texts, length, -1)
        return own[:, :, tokens.start : tokens.stop].flatten(0, 1)


def _tiles(group: Group, heads: int, window: int | None) -> Iterator[_Tile]:
    """The group in tiles: several texts whole if they are short, parts of one if it is long."""
    length = group.length
    rows = min(length, max(16, SCORES // (heads * length)))
    if window is not None:
        rows = min(rows, max(64, window))
    texts = max(1, SCORES // (heads * length * length))
    for first in range(0, group.texts, texts):
        part = group._replace(start=group.start + first * length, texts=min(texts, group.texts - first))
        for start in range(0, length, rows):
            yield _Tile(part, range(start, min(start + rows, length)))


def _attend(
    tile: _Tile, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, sight: Sight, by_maximum: bool
) -> None:
    rows, columns = tile.rows, sight.seen_by(tile.rows, tile.texts.seen)
    scores = torch.bmm(tile.of(queries, rows), tile.of(keys, columns).transpose(1, 2))
    shape = (len(queries), tile.texts.texts, len(rows), -1)
    if sight.bias is not None:
        scores.view(shape).add_(sight.bias[:, None, rows.start : rows.stop, columns.start : columns.stop])
    if sight.causal or sight.window is not None:
        offset = rows.start - columns.start
        scores += _hidden(offset, len(rows), len(columns), sight.causal, sight.window, scores.dtype)
    if by_maximum:
        scores -= scores.amax(-1, keepdim=True)
    weights = torch.exp2(scores, out=scores)
    total = weights.sum(-1, keepdim=True)
    attended = torch.bmm(weights, tile.of(values, columns))
    # [texts, length, heads, size] as [heads, texts, rows, size]: divided and put back into the row at once.
    target = tile.texts.view(out)[:, rows.start : rows.stop].permute(2, 0, 1, 3)
    torch.div(attended.view(shape), total.view(shape), out=target)


def _by_head(x: Tensor, last: Tensor) -> Tensor:
    """[T, heads, size] as [heads, T, size + 1], ``last`` ([T, heads] or a single number) behind the others."""
    tokens, heads, size = x.shape
    out = x.new_empty(heads, tokens, size + 1)
    out[..., :size] = x.transpose(0, 1)
    out[..., size] = last.t()
    return out


@lru_cache(maxsize=256)
def _hidden(offset: int, queries: int, keys: int, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor:
    """[queries, keys]: 0 where a query sees a key, else minus infinity. Query i stands at key ``offset + i``."""
    distance = torch.arange(keys)[None] - torch.arange(offset, offset + queries)[:, None]
    unseen = distance > 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        unseen |= distance.abs() > window
    return torch.zeros(queries, keys, dtype=dtype).masked_fill_(unseen, -math.inf)
