"""The control groups (cgroup v2) of this process, in which a container's limits stand. Not here: what a limit means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def folders(root: Path = Path("/")) -> Iterator[Path]:
    """This process's own group and those above it, as far as it sees them; ``root``: of the file system."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
        own = next(entry.removeprefix("0::") for entry in entries if entry.startswith("0::"))
    except (OSError, StopIteration):  # not Linux, or cgroup v1
        return
    top = root / "sys/fs/cgroup"
    group = top / own.lstrip("/")
    for folder in (group, *group.parents):
        yield folder
        if folder == top:
            return
