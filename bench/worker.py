"""The child's side of a measurement in process: it takes orders as JSON lines and answers each with one.

Imports the standard library only, since it also runs in the peers' environments.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
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


def slice_of(run: Callable[[Any], object], work: Iterator[tuple[Any, float]], seconds: float) -> list[Any]:
    """Run calls one after the other for ``seconds``: texts done, seconds taken, seconds of each call.

    Args:
        work: calls and how many texts each holds, without end; the next slice goes on where this one stops.
    """
    items, latencies = 0.0, []
    began = start = time.perf_counter()
    while start - began < seconds:
        call, size = next(work)
        run(call)
        items += size
        latencies.append(time.perf_counter() - start)
        start = time.perf_counter()
    return [items, start - began, latencies]
