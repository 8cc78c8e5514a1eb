"""``python -m bench [TABLE] [options]``: one measured table of `TABLES`, or all."""

from __future__ import annotations

import importlib
import platform
import sys

import psutil

TABLES = (
    "compare",
    "from_zero",
    "warm_path",
    "engine",
    "gpu",
    "residency",
    "broker",
    "stack",
    "compression",
    "sdk",
    "catalogue",
    "propagation",
)


def main() -> None:
    """Run what was asked for; a table's own options come after its name."""
    named = bool(sys.argv[1:]) and not sys.argv[1].startswith("-")
    names = [sys.argv.pop(1)] if named else TABLES
    memory = psutil.virtual_memory().total / 2**30
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}")
    for name in names:
        if name not in TABLES:
            sys.exit(f"There is no table {name!r}; there are {', '.join(TABLES)}.")
        try:
            importlib.import_module(f"bench.{name}").main()
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
