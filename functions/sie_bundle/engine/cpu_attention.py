"""Attention on a CPU: torch's fused kernel, once for each length of text in a batch.

The kernel takes up to twice as long over an odd number of keys as over whole sixteens. So a text is seen together with
the up to fifteen tokens that stand behind it in the row, of whatever text, and a mask hides them: no number is copied,
and the products of bfloat16, which are compiled for each size, have few sizes. Texts of at most sixteen tokens, of
whatever lengths, share blocks of the row in bfloat16, where what each sees is for a mask alone to say.

Owns what of a batch each call computes (`Part`), made once for all layers. `attended` and what it calls is compiled,
for ``layer`` together with the layers.
"""

# No annotations from the future: ``compiled``.
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sie_bundle.engine.attention_mask import AttentionMask, sloped
from sie_bundle.engine.compiled import compiled
from sie_bundle.engine.packing import Group, Packed

STEP = 16
"""Keys that the kernel computes at once."""

ROWS = 64
"""Queries of one call where each sees a window of the keys only."""

BLOCK, AROUND = 32, 16
"""Queries of short texts that are computed together, and the keys before and behind them that are seen with them."""

FEW = 3
"""Lengths of short texts for which blocks are not worth it."""

BIASES = 1 << 22
"""Numbers of a bias by slopes that are made at a time."""


class Part(NamedTuple):
    """One call: some queries of texts of one length that lie side by side, and the keys that any of them sees.

    Or of blocks, instead of texts.
    """

    start: int
    """Where the first text begins."""
    texts: int
    length: int
    """From one text to the next."""
    first: int
    """Queries ``first`` to ``last`` of each text, of which those before ``own`` are its own."""
    last: int
    own: int
    low: int
    """Keys ``low`` to ``high``, likewise."""
    high: int
    causal: bool
    additive: Tensor | None
    """What is added to the scores, [1 or texts, 1 or heads, queries or 1, keys]."""


class View(NamedTuple):
    """A batch as attention with one mask needs it."""

    parts: list[Part]
    """In this order: what one computes of a text that is not its own, a later one overwrites."""
    tokens: int
    """Of all texts; rows behind them are nobody's."""
    slopes: Tensor | None
    """See `AttentionMask.slopes`."""


def room(packed: Packed) -> int:
    """The rows that a batch needs for its last texts, too, to be seen in whole sixteens."""
    return max(_end(group) for group in packed.groups)


def view(packed: Packed, mask: AttentionMask, dtype: torch.dtype, rows: int) -> View:
    """A batch of so many rows of queries, keys and values of that type.

    A text whose sixteens do not fit into the rows is computed by its length.
    """
    far = torch.zeros(2 * packed.longest + STEP, dtype=dtype)
    far[packed.longest :] = -torch.inf
    short = [group for group in packed.groups if group.length <= STEP] if _in_blocks(packed, mask, dtype) else []
    parts = _blocks(short, rows, dtype) if len(short) > FEW else []
    for group in packed.groups[len(short) if parts else 0 :]:
        size = whole(group.length) if _end(group) <= rows else group.length
        for first, last, low, high in _spans(size, mask):
            own = min(last, group.length)
            causal, additive = _hidden(group, mask, (first, last, low, high), far[packed.longest - group.seen :])
            parts.append(Part(group.start, group.texts, group.length, first, last, own, low, high, causal, additive))
    return View(parts, int(packed.lengths.sum()), mask.slopes)


def attend(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
    """See `attention.Attend`."""
    key = q.dtype, len(q), mask.causal, mask.window, id(mask.bias), id(mask.slopes)
    if key not in packed.made:
        packed.made[key] = view(packed, mask, q.dtype, len(q))
    return attended_at_once()(q, k, v, packed.made[key])


def attended(q: Tensor, k: Tensor, v: Tensor, seen: View) -> Tensor:
    """q [T, heads, head_dim], k and v [T, key heads, head_dim] to [T, heads, head_dim]: zeros behind the last text."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for part in seen.parts:
        additive, slopes = part.additive, seen.slopes
        if slopes is not None:
            places = torch.arange(part.last, dtype=torch.float32)
            bias = sloped(slopes, places[part.first :], torch.arange(part.low, part.high, dtype=torch.float32))
            additive = bias.unsqueeze(0) if additive is None else bias.unsqueeze(0).add_(additive)
        own = torch.ops.aten.scaled_dot_product_attention(
            of_part(q, part, part.first, part.last),
            of_part(k, part, part.low, part.high),
            of_part(v, part, part.low, part.high),
            additive,
            is_causal=part.causal,
            enable_gqa=k.size(1) < q.size(1),
        )
        of_part(out, part, part.first, part.own).copy_(own[:, :, : part.own - part.first])
    out[seen.tokens :].zero_()
    return out


def of_part(x: Tensor, part: Part, first: int, last: int) -> Tensor:
    """``x`` [T, heads, head_dim] as [texts, heads, last - first, head_dim]: texts may reach into the next one."""
    row = x.stride(0)
    return x.as_strided(
        [part.texts, x.size(1), last - first, x.size(2)],
        [part.length * row, x.stride(1), row, x.stride(2)],
        x.storage_offset() + (part.start + first) * row,
    )


def whole(number: int) -> int:
    """The next multiple of `STEP`."""
    return -(-number // STEP) * STEP


def _end(group: Group) -> int:
    return group.start + (group.texts - 1) * group.length + whole(group.length)


def _in_blocks(packed: Packed, mask: AttentionMask, dtype: torch.dtype) -> bool:
    """Whether short texts share blocks. In float32 a block takes longer than its texts."""
    return dtype is torch.bfloat16 and mask.whole and not mask.causal and packed.keys is None


def _blocks(short: Sequence[Group], rows: int, dtype: torch.dtype) -> list[Part]:
    """The texts of these groups, the first of the row, in blocks. Those at an end of the rows see fewer keys around."""
    tokens = short[-1].start + short[-1].texts * short[-1].length
    text = np.full(rows, -1)
    text[:tokens] = np.repeat(
        np.arange(sum(group.texts for group in short)),
        np.repeat([group.length for group in short], [group.texts for group in short]),
    )
    count = -(-tokens // BLOCK)
    inner = range(1, max(1, min(count, (rows - AROUND) // BLOCK)))
    parts: list[Part] = []
    for blocks in (range(1), inner, *([block] for block in range(max(1, inner.stop), count))):
        if len(blocks):
            start = max(0, blocks[0] * BLOCK - AROUND)
            first, last = blocks[0] * BLOCK - start, min((blocks[0] + 1) * BLOCK, rows) - start
            high = min(last + AROUND, rows - start)
            keys = text[start + np.arange(len(blocks))[:, None] * BLOCK + np.arange(high)]
            unseen = torch.from_numpy(keys[:, None, first:last, None] != keys[:, None, None, :])
            additive = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -torch.inf)
            parts.append(Part(start, len(blocks), BLOCK, first, last, last, 0, high, False, additive))
    return parts


def _spans(size: int, mask: AttentionMask) -> Iterator[tuple[int, int, int, int]]:
    """Queries of each call, and the keys they see, of texts of that size: `Part`'s first, last, low and high."""
    rows = size
    if mask.slopes is not None:
        rows = max(STEP, BIASES // (len(mask.slopes) * size) // STEP * STEP)
    elif mask.window is not None:
        rows = ROWS
    for first in range(0, size, rows):
        last = min(first + rows, size)
        low, high = 0, size
        if mask.window is not None:
            low, high = max(0, first - mask.window) // STEP * STEP, min(size, whole(last + mask.window))
        yield first, last, low, min(high, whole(last)) if mask.causal else high


def _hidden(
    group: Group, mask: AttentionMask, span: tuple[int, int, int, int], far: Tensor
) -> tuple[bool, Tensor | None]:
    """Whether what is hidden is what comes later and nothing else; if not, what is added to scores, where anything is.

    ``far``: zeros for the keys of a text that are seen, and behind them minus infinity.
    """
    first, last, low, high = span
    if mask.causal and mask.whole and group.seen == group.length:
        return True, None
    additive = far[low:high].view(1, 1, 1, -1) if group.seen < high else None
    if mask.causal or mask.window is not None:
        distance = torch.arange(low, high) - torch.arange(first, last)[:, None]
        unseen = distance > 0 if mask.causal else torch.zeros_like(distance, dtype=torch.bool)
        if mask.window is not None:
            unseen |= distance.abs() > mask.window
        both = torch.zeros(1, 1, *distance.shape, dtype=far.dtype).masked_fill_(unseen, -torch.inf)
        additive = both if additive is None else both.add_(additive)
    if mask.bias is not None:
        bias = mask.bias[None, :, first:last, low:high]
        additive = bias if additive is None else bias + additive
    return False, additive


STEPS = (of_part, sloped)
"""What `attended` calls."""


@functools.cache
def attended_at_once() -> Callable[[Tensor, Tensor, Tensor, View], Tensor]:
    """`attended`, compiled when it is first needed by itself."""
    return compiled(attended, *STEPS)
