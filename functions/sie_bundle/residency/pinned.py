"""Pinned tensors: a checkpoint's in pages that the system never moves, so that a CUDA device copies them by itself.

A model that was evicted comes back from them at the speed of the bus. They are no part of the page cache, so they cost
their bytes: ``SIE_HOST_BYTES`` limits them. Needs a CUDA device.

torch rounds each piece of such memory up to a power of two, which for tensors by themselves is half as much again or
more. So they lie side by side in slabs of such sizes. And it keeps what is freed, pinned, until `unpin`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sie_bundle.models.checkpoint import Checkpoint

LEAST, MOST = 1 << 20, 1 << 26
"""Bytes of a slab, but for one of a larger tensor."""
MORE = 1 << 23
"""Of one for what is more than was expected: the sums of a LoRA are wider than what is stored."""
ALIGNED = 256
"""What a tensor's first byte is a multiple of, in its slab."""


class Slab:
    """One piece of pinned memory, filled from its start."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pages = _pages(size)
        self._taken = 0

    def holds(self, tensor: Tensor) -> bool:
        """Whether there is room for it."""
        return self._taken + tensor.nbytes <= self.size

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy of it in here."""
        place = self._pages[self._taken : self._taken + tensor.nbytes]
        self._taken += -(-tensor.nbytes // ALIGNED) * ALIGNED
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class Pinned(dict[str, Tensor]):
    """Copies of another mapping's tensors, in pinned memory. ``expected``: their bytes, or about."""

    def __init__(self, tensors: Mapping[str, Tensor], expected: int) -> None:
        slabs = list[Slab]()
        for name, tensor in tensors.items():  # one at a time: a LoRA's sums are made when they are looked at
            slab = next((each for each in slabs if each.holds(tensor)), None)
            if slab is None:
                slabs.append(slab := Slab(size_of_slab(tensor.nbytes, expected)))
            self[name] = slab.copied(tensor)
            expected -= tensor.nbytes
        self.bytes = sum(slab.size for slab in slabs)
        """What they take, with what is left over in the slabs."""


def size_of_slab(least: int, left: int) -> int:
    """A power of two that ``least`` bytes fit into; where so many are ``left`` to come, one that these fill."""
    fitting = 1 << max(0, left.bit_length() - 1) if left > 0 else MORE
    return max(1 << max(0, least - 1).bit_length(), min(max(fitting, LEAST), MOST))


def pin(checkpoint: Checkpoint) -> int:
    """Replace the checkpoint's tensors by pinned copies, unless they are such, and close its files.

    Returns:
        The bytes that they take.
    """
    if not isinstance(checkpoint.tensors, Pinned):
        checkpoint.tensors = Pinned(checkpoint.tensors, checkpoint.bytes)
        checkpoint.let_go = _stays  # the files' own holds on to them
    return checkpoint.tensors.bytes


def unpin() -> None:
    """Return pinned memory that was freed to the system. May wait for the device."""
    if empty := getattr(torch._C, "_host_emptyCache", None):  # only builds for CUDA have it
        empty()


def _pages(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _stays(name: str) -> None:
    """A pinned tensor is copied many times."""
