"""Memory: how much of it is in use where models run, and the return of what was freed to the system.

A CPU's is the machine's, or that of the control group (cgroup v2) that limits this process most. Pages of files that
the system can drop at once, mapped weights among them, count as free: a model's file must not push a model out. So does
what torch keeps of a GPU's memory and nobody uses: it gives it to the next who asks, or back when there is no other.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sie_bundle import control_group

KIB = 1024

KEPT_PIECE, KEPT_END = 32 * 1024**2, 64 * 1024**2
"""The most bytes of one piece that the C library keeps when it is freed, and of the unused end of each of its heaps."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""As glibc's malloc.h has them."""


class Memory(NamedTuple):
    """Bytes in use and in all; ``total`` is 0 where the system does not say."""

    used: int
    total: int

    def over(self, percent: float) -> int:
        """So many bytes are in use above ``percent`` of all; negative: so many are free below it."""
        return self.used - int(self.total * percent / 100) if self.total else -sys.maxsize

    @property
    def free(self) -> int:
        """Bytes not in use."""
        return self.total - self.used if self.total else sys.maxsize


def of(device: str) -> Callable[[], Memory]:
    """How to read the memory of a device, as torch names it. Reading a CUDA device imports torch."""
    return machine if device.split(":")[0] != "cuda" else lambda: _cuda(device)


def machine(root: Path = Path("/")) -> Memory:
    """The machine's memory, or the control group's with the least left; ``root``: of the file system."""
    return min([_meminfo(root), *_groups(root)], key=lambda each: each.free)


def give_back(device: str) -> None:
    """Return what was freed to the system: torch and the C library both keep it for the next who asks them."""
    if device.split(":")[0] == "cuda":
        import torch

        torch.cuda.empty_cache()
    elif trim := _library("malloc_trim"):
        trim(0)


def keep_freed() -> None:
    """Let the C library keep what a pass frees for the next one, until `give_back`.

    By itself it returns each state of a batch to the system, and the next pass takes the same pages anew, one fault for
    every 4 KiB: a twentieth of the time of a batch of documents.
    """
    if set_option := _library("mallopt"):
        set_option(_M_MMAP_THRESHOLD, KEPT_PIECE)
        set_option(_M_TRIM_THRESHOLD, KEPT_END)


def _cuda(device: str) -> Memory:
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    return Memory(max(0, total - free - kept), total)


def _meminfo(root: Path) -> Memory:
    try:
        lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        known = {line[0]: int(line[1]) * KIB for line in lines if line[:1] in (["MemTotal:"], ["MemAvailable:"])}
        return Memory(known["MemTotal:"] - known["MemAvailable:"], known["MemTotal:"])
    except (OSError, KeyError, ValueError, IndexError):  # not Linux
        return Memory(0, 0)


def _groups(root: Path) -> Iterator[Memory]:
    """This process's control groups, as far as they have a limit."""
    for folder in control_group.folders(root):
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                files = sum(int(line[1]) for line in lines if line[0] in ("inactive_file", "active_file"))
                used = int((folder / "memory.current").read_text()) - files
                yield Memory(max(0, used), int(limit))
        except (OSError, ValueError, IndexError):
            pass  # the top has no limit, and a container does not see what is above it


@cache
def _library(name: str) -> Callable[..., int] | None:
    """A function of glibc; None where there is another C library."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
