"""Pinned tensors: a checkpoint's in pages that the system never moves, so that a CUDA device copies them by itself.

A model that was evicted comes back from them at the speed of the bus. They are no part of the page cache, so they cost
their bytes: ``SIE_HOST_BYTES`` limits them. Needs a CUDA device.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from sie_bundle.models.checkpoint import Checkpoint


class Pinned(dict[str, Tensor]):
    """Copies of another mapping's tensors, in pinned memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__({name: tensor.pin_memory() for name, tensor in tensors.items()})


def pin(checkpoint: Checkpoint) -> None:
    """Replace the checkpoint's tensors by pinned copies; its files are closed. Pinned ones stay as they are."""
    if not isinstance(checkpoint.tensors, Pinned):
        checkpoint.tensors = Pinned(checkpoint.tensors)
        checkpoint.let_go = _stays  # the files' own holds on to them


def _stays(name: str) -> None:
    """A pinned tensor is copied many times."""
