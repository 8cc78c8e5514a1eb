"""``python -m bench [engine|from_zero|warm_path]...``: print the measured tables; all of them without an argument."""

from __future__ import annotations

import importlib
import platform
import sys

import psutil

TABLES = ("from_zero", "warm_path", "engine")


def main() -> None:
    """Run what was asked for."""
    memory = psutil.virtual_memory().total / 2**30
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}")
    for name in sys.argv[1:] or TABLES:
        if name not in TABLES:
            sys.exit(f"There is no table {name!r}; there are {', '.join(TABLES)}.")
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
