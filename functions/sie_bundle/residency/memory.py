"""Memory: how much of it is in use where models run, and the return of what was freed to the system.

A CPU's is the machine's, or that of the control group (cgroup v2) that limits this process most. Pages of files that
the system can drop at once, mapped weights among them, count as free: a model's file must not push a model out.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

KIB = 1024


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
    elif trim := _trim():
        trim(0)


def _cuda(device: str) -> Memory:
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return Memory(total - free, total)


def _meminfo(root: Path) -> Memory:
    try:
        lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        known = {line[0]: int(line[1]) * KIB for line in lines}
        return Memory(known["MemTotal:"] - known["MemAvailable:"], known["MemTotal:"])
    except (OSError, KeyError):  # not Linux
        return Memory(0, 0)


def _groups(root: Path) -> Iterator[Memory]:
    """This process's control group and those above it, as far as they have a limit."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
        own = next(entry.removeprefix("0::") for entry in entries if entry.startswith("0::"))
    except (OSError, StopIteration):
        return
    top = root / "sys/fs/cgroup"
    group = top / own.lstrip("/")
    for folder in (group, *group.parents):
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                files = int(counts["inactive_file"]) + int(counts["active_file"])
                used = int((folder / "memory.current").read_text()) - files
                yield Memory(max(0, used), int(limit))
        except OSError:
            pass  # the top has no limit, and a container does not see what is above it
        if folder == top:
            return


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; None where there is another C library."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
