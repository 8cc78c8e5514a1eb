"""Where a token stands, for families that do not add it to the embedding: rotation, and biases by distance."""

# No annotations from the future: ``compiled``.
import math
from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed
from sie_bundle.engine.rope import Rope


class Rotary(NamedTuple):
    """A rotation: sines and cosines of places, or of each token's place in a batch, [places or T, 1, head_dim]."""

    cosines: Tensor
    sines: Tensor


def rotated(x: Tensor, rotary: Rotary) -> Tensor:
    """``x`` [T, heads, head_dim], each token rotated by its place."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((second, first), dim=-1).mul_(rotary.sines).addcmul_(x, rotary.cosines)


class RotaryTables:
    """Rotary positions (2104.09864): each pair of dimensions (i, i + head_dim / 2) turned by position times its step.

    Tables of sines and cosines are kept per rotation, up to one as long as the longest text so far. None is let go: its
    memory would be a load's at once, on another stream of the GPU, while a pass still reads it.
    """

    def __init__(self, head_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self._size = head_size
        self._device = device
        self._dtype = dtype
        self._tables: dict[Rope, list[Rotary]] = defaultdict(list)

    def __call__(self, packed: Packed, rope: Rope) -> Rotary:
        """The rotation of a batch's tokens."""
        table = self.table(rope, packed.longest)
        return Rotary(table.cosines[packed.positions], table.sines[packed.positions])

    def table(self, rope: Rope, length: int) -> Rotary:
        """The rotation of so many places, or more."""
        kept = self._tables[rope]
        table = kept[-1] if kept else None
        if table is None or len(table.cosines) < length:
            kept.append(table := self._made(rope, length))
        return table  # as it was made: another thread may put a shorter one behind it

    def _made(self, rope: Rope, length: int) -> Rotary:
        places = torch.arange(max(512, 1 << (length - 1).bit_length()), dtype=torch.float64)
        angles = (places[:, None] * torch.from_numpy(rope.steps(self._size)))[:, None]
        cosines = torch.cat((angles.cos(), angles.cos()), dim=-1)
        # The first half of the dimensions takes the second's number with a minus.
        sines = torch.cat((-angles.sin(), angles.sin()), dim=-1)
        return Rotary(cosines.to(self._device, self._dtype), sines.to(self._device, self._dtype))


def slopes(heads: int, device: torch.device) -> Tensor:
    """The slopes of ALiBi (`AttentionMask.slopes`), [heads]: a geometric series; of a number between powers of two,
    every other one more."""
    whole = 1 << (heads.bit_length() - 1)
    series = [2.0 ** (-8 * (i + 1) / whole) for i in range(whole)]
    series += [2.0 ** (-8 * (2 * i + 1) / (2 * whole)) for i in range(heads - whole)]
    return -torch.tensor(series, dtype=torch.float32, device=device)


class RelativeBias:
    """A bias per head and bucket of distance (T5, 1910.10683, section 2.1), in both directions.

    Args:
        weight: [buckets, heads].
    """

    def __init__(self, weight: Tensor, largest: int = 128) -> None:
        self._weight = weight
        self._largest = largest
        self._made = [torch.empty(0)]
        """As with `RotaryTables`."""

    def __call__(self, length: int) -> Tensor:
        """[heads, length, length] or larger: what is added to the scores of query i and key j."""
        bias = self._made[-1]
        if bias.shape[-1] < length:
            place = torch.arange(length)
            buckets = self._bucket(place[None] - place[:, None])
            bias = self._weight[buckets.to(self._weight.device)].permute(2, 0, 1).contiguous()
            self._made.append(bias)
        return bias

    def _bucket(self, distance: Tensor) -> Tensor:
        """One half of the buckets for keys behind the query, in each half the near ones one by one, the far by log."""
        half = len(self._weight) // 2
        exact = half // 2
        away = distance.abs()
        ratio = torch.log(away.clamp(min=1).float() / exact) / math.log(self._largest / exact)
        far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
        return torch.where(away < exact, away, far) + (distance > 0).long() * half
