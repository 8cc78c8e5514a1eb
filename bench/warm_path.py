"""What the broker adds to a warm request: the same request to ``sie serve`` (in process) and to ``sie up`` (over NATS).

Both servers run at once and are asked in turn, so that a slow moment of the machine hits both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from bench.servers import MODEL, served, up
from bench.table import show
from sie_sdk import SIEClient

TEXT = "The quick brown fox jumps over the lazy dog."
WARM_UP, ROUNDS = 50, 600


def main() -> None:
    """Print p50 and p99 of one short text, both ways, and the difference."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served() as in_process,
        up(Path(folder)) as over_nats,
        SIEClient(in_process) as local,
        SIEClient(over_nats) as remote,
    ):
        took: dict[str, list[float]] = {"in process": [], "over NATS": []}
        for i in range(WARM_UP + ROUNDS):
            for name, client in (("in process", local), ("over NATS", remote)):
                began = time.perf_counter()
                client.encode(MODEL, TEXT)
                if i >= WARM_UP:
                    took[name].append((time.perf_counter() - began) * 1000)
    rows = [
        [name, f"{statistics.median(times):.2f}", f"{statistics.quantiles(times, n=100)[98]:.2f}"]
        for name, times in took.items()
    ]
    added = statistics.median(b - a for a, b in zip(*took.values(), strict=True))
    rows.append(["added by the broker (paired median)", f"{added:.2f}", ""])
    show("Warm path: one short text, one client, ms", ["way", "p50", "p99"], rows)
