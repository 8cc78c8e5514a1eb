"""Tiles: a packed batch cut for a CPU's attention into few sizes of matrix products. Made once, used by every layer.

Short texts share blocks of 32 or 64 tokens, in which each sees only its own; a longer text has a tile to itself. Sizes
are rounded up, because oneDNN compiles its bfloat16 products anew for each size: half a millisecond and as many
megabytes. What a tile is rounded up with, no token sees, and nothing but scores is ever computed for it.
"""

# No annotations from the future: ``compiled``.
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed
from sie_bundle.engine.sight import Sight

BLOCKS = ((16, 32), (64, 64))
"""Texts of at most so many tokens share blocks of so many."""

TOGETHER = 512
"""The most tokens of the blocks of one tile, for the memory their scores take."""

SCORES = 1 << 19
"""Scores computed at a time: a core's cache holds them twice in bfloat16."""


class Tile(NamedTuple):
    """Some texts that lie side by side: tokens ``start`` to ``stop`` of the packed row."""

    start: int
    stop: int
    blocks: int
    size: int
    """Tokens of each block, rounded up."""
    tokens: Tensor
    """[blocks * size] int64: the place of each in the packed row; one more than the last of all where there is none."""
    real: Tensor | None
    """[stop - start] int64: which of them are tokens; None: the first so many."""
    texts: Tensor
    """[blocks, size] int64: the text a token is of; -1 where there is none."""
    places: Tensor
    """[blocks, size] int64: its place in its text."""
    queries: int
    """Of one head, whose scores are computed at a time."""


def gathered(tile: Tile, x: Tensor) -> Tensor:
    """[heads, T + 1, n] as [heads * blocks, size, n]."""
    if tile.real is None and tile.size == tile.stop - tile.start:
        return x[:, tile.start : tile.stop]
    return x.index_select(1, tile.tokens).view(-1, tile.size, x.size(2))


def scattered(tile: Tile, x: Tensor) -> Tensor:
    """[heads * blocks, size, n] as [stop - start, heads, n]."""
    by_head = x.view(-1, tile.blocks * tile.size, x.size(2))
    real = tile.real
    own = by_head[:, : tile.stop - tile.start] if real is None else by_head.index_select(1, real)
    return own.transpose(0, 1)


def hidden(tile: Tile, sight: Sight, dtype: torch.dtype) -> Tensor | None:
    """[blocks, size, size]: minus infinity where a token does not see another, else 0; None: it sees all."""
    if tile.blocks == 1 and tile.real is None and not sight.causal and sight.window is None:
        return None
    distance = tile.places[:, None] - tile.places[:, :, None]
    unseen = tile.texts[:, None] != tile.texts[:, :, None]
    if sight.causal:
        unseen |= distance > 0
    if sight.window is not None:
        unseen |= distance.abs() > sight.window
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -torch.inf)


def tiles(packed: Packed, step: int) -> list[Tile]:
    """The batch in tiles; a text longer than a block is rounded up to a multiple of ``step`` tokens, or an eighth."""
    made: list[Tile] = []
    short: dict[int, list[list[tuple[int, int]]]] = {}
    for start, length in _texts(packed):
        size = next((size for most, size in BLOCKS if length <= most), 0)
        if not size:
            made.append(_tile([[(start, length)]], rounded(length, step), packed))
            continue
        blocks = short.setdefault(size, [])
        if blocks and start + length - blocks[-1][0][0] <= size:
            blocks[-1].append((start, length))
        else:
            blocks.append([(start, length)])
    for size, blocks in short.items():
        for first in range(0, len(blocks), TOGETHER // size):
            some = blocks[first : first + TOGETHER // size]
            # One text alone needs no block: the size of what there is will do.
            alone = len(some) == 1 and len(some[0]) == 1
            made.append(_tile(some, rounded(some[0][0][1], 8) if alone else size, packed))
    return made


def rounded(number: int, step: int) -> int:
    """The next multiple of ``step``, or of a sixteenth of the next power of two where that is more."""
    step = max(step, 1 << max(0, (number - 1).bit_length() - 4))
    return -(-number // step) * step


def _texts(packed: Packed) -> Iterator[tuple[int, int]]:
    for group in packed.groups:
        for text in range(group.texts):
            yield group.start + text * group.length, group.length


def _tile(blocks: list[list[tuple[int, int]]], size: int, packed: Packed) -> Tile:
    nothing = int(packed.lengths.sum())
    tokens = np.full((len(blocks), size), nothing, dtype=np.int64)
    texts, places = np.full_like(tokens, -1), np.zeros_like(tokens)
    for block, members in enumerate(blocks):
        first = members[0][0]
        for start, length in members:
            own = slice(start - first, start - first + length)
            tokens[block, own] = np.arange(start, start + length)
            texts[block, own] = start
            places[block, own] = np.arange(length)
    start, stop = blocks[0][0][0], sum(blocks[-1][-1])
    single = len(blocks) == 1 and len(blocks[0]) == 1
    flat = tokens.reshape(-1)
    return Tile(
        start=start,
        stop=stop,
        blocks=len(blocks),
        size=size,
        tokens=torch.from_numpy(flat),
        real=None if single else torch.from_numpy(np.flatnonzero(flat != nothing)),
        texts=torch.from_numpy(texts),
        places=torch.from_numpy(places),
        queries=SCORES // size,
    )
