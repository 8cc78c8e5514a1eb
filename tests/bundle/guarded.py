"""Passes of every variant and kind of layer with a page behind each piece of memory that ends who touches it.

A program, for a process of its own: ``python -m tests.bundle.guarded``. It says what it computes, so that the last line
of one that was ended is what reads or writes too far. A piece begins and ends on whole lines of 64 bytes; what is less
than a line too far is not found.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import numpy.typing as npt
import torch

from sie_bundle.engine import buffers
from sie_bundle.engine.attention_mask import AttentionMask
from tests.bundle import variants
from tests.bundle.test_fused import KINDS, a_layer, batch, compare

NARROW = {"hidden": 32, "heads": 1, "key_heads": 1, "inner": 32}
"""Attention has most of its room, and the end of it."""
ALL = {**KINDS, "a head of 100": {**NARROW, "size": 100}, "a head of 72": {**NARROW, "size": 72}}
LENGTHS = ([1], [17], [33], [128], [5, 31, 32, 64], [70, 1, 100])
MASKS = (AttentionMask(), AttentionMask(causal=True), AttentionMask(window=9))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def piece(size: int) -> npt.NDArray[np.uint8]:
    """`buffers.piece`, up to a page that nobody may touch."""
    lines = -(-size // buffers.ALIGNED) * buffers.ALIGNED
    pages = -(-lines // mmap.PAGESIZE) * mmap.PAGESIZE
    room = mmap.mmap(-1, pages + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert _libc.mprotect(start + pages, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
    return np.frombuffer(room, np.uint8)[pages - lines : pages - lines + size]


def main() -> None:
    buffers.piece = piece
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for of in variants.HERE:
        for kind, options in ALL.items():
            layers = [a_layer(**options)] * 2  # type: ignore[arg-type]
            for lengths in LENGTHS:
                for mask in MASKS:
                    sys.stdout.write(f"{of} {kind} {lengths} {mask}\n")
                    sys.stdout.flush()
                    compare(of, layers, batch(lengths), mask)


if __name__ == "__main__":
    main()
