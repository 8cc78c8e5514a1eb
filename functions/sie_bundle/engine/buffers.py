"""The host's memory while a model is laid out: large tensors that come and go.

Owns how they leave memory again. A load makes several times what it leaves, so whatever is not used again stays in the
process for as long as the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sie_bundle.engine.native import address

ALIGNED = 64
"""Bytes."""


def piece(size: int) -> npt.NDArray[np.uint8]:
    """[size] uint8, not set, from a whole `ALIGNED` on."""
    room = np.empty(size + ALIGNED, np.uint8)
    first = -address(room) % ALIGNED
    return room[first : first + size]


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU, not set, in a piece of memory that the next one of its size gets when it goes.

    torch asks the C library for an aligned piece, which is cut out of a larger one. What is cut off goes to something
    small, so that glibc 2.36 finds the piece too small for the next one: a model of 440 MB left 260 more behind.
    """
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.from_numpy(piece(size)).view(dtype).view(shape)
