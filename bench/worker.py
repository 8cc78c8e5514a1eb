"""The child's side of a measurement in process: it takes orders as JSON lines and answers each with one.

Imports the standard library only, since it also runs in the peers' environments.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def obey(actions: dict[str, Callable[..., Any]]) -> None:
    """Answer orders ``{"do": name, ...arguments}`` until the standard input ends. Nothing else may print."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        order = json.loads(line)
        answers.write(json.dumps(actions[order.pop("do")](**order)) + "\n")
        answers.flush()


def requests(file: Path) -> dict[str, list[list[str]]]:
    """The texts of each call by workload, as `bench.peers` wrote them."""
    calls: dict[str, list[list[str]]] = json.loads(file.read_text())
    return calls


def slice_of(run: Callable[[Any], object], calls: Sequence[Any], sizes: Sequence[float], seconds: float) -> list[Any]:
    """Run the calls one after the other for ``seconds``: texts done, seconds taken, seconds of each call."""
    items, latencies = 0.0, []
    began = time.perf_counter()
    for call, size in itertools.cycle(zip(calls, sizes, strict=True)):
        start = time.perf_counter()
        if start - began >= seconds:
            break
        run(call)
        items += size
        latencies.append(time.perf_counter() - start)
    return [items, time.perf_counter() - began, latencies]
