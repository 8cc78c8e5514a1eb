"""The host's memory while a model is laid out: large tensors that come and go, and those of mapped files.

Owns how both leave memory again. A load makes several times what it leaves, so whatever is not used again stays in the
process for as long as the model.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sie_bundle.engine.native import address

ALIGNED = 64
"""Bytes."""

_madvise = ctypes.CDLL(None).madvise if sys.platform == "linux" else None


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


def let_go(mapped: Tensor) -> None:
    """Take a tensor of a mapped file out of memory: who reads it again has it from the system's pages of the file.

    Of any shape and type, contiguous. Nobody may have written to it: that would be lost (madvise(2), MADV_DONTNEED).
    """
    begin = mapped.data_ptr()
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + mapped.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if _madvise and first < last:
        _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
