"""What the engine does in one process, as a table: latency, throughput, the kernel choices and the cold start.

    python -m bench engine [--rounds N]

Every figure is a median over the rounds, which take turns, so that a busy neighbour disturbs all rows alike.
Not here: queues, HTTP and several processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bench.installs import own_weights
from bench.servers import MODEL
from sie_bundle.engine import native
from sie_bundle.engine.row import Row, row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel, load
from sie_config import catalog

SPEC = catalog.load()[MODEL]
STEPS = ("interpreter, catalogue", "import torch, engine", "weights, dry run", "first vector")
# Runs in a process of its own; prints the clock after each step.
COLD_START = """
import time
from pathlib import Path
from sie_config import catalog
from sie_bundle import lazy_torch
from sie_bundle.models.tokenization import Tokenizer
lazy_torch.begin()
spec = catalog.load()[{model!r}]; t1 = time.time()
from sie_bundle.models.model import load
from sie_bundle.models.checkpoint import Checkpoint; t2 = time.time()
model = load(Checkpoint(spec, Path({folder!r}))); t3 = time.time()
model.forward(model.tokenizer.rows(["hello world"], 256), {{"dense": [0]}}); t4 = time.time()
print(t1, t2, t3, t4, flush=True)
import os; os._exit(0)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    folder = own_weights()
    print(f"{SPEC.id}, torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    print(f"medians of {rounds} rounds\n")
    kernels(folder, rounds)
    cold_start(folder, rounds)


def kernels(folder: Path, rounds: int) -> None:
    """Each choice of kernels on the same rows."""
    workloads = {
        "1 short text": [short_row()],
        "256 queries": [short_row()] * 256,
        "64 mixed texts": mixed_rows(64),
        "256 mixed texts": mixed_rows(256),
        "64 of 64 tokens": [row_of(64)] * 64,
    }
    variants = {
        "in use": partial(dense, model(folder)),
        "by torch's steps": partial(dense, model(folder, kernels=None)),
        "float32": partial(dense, model(folder, "float32")),
        "float32, by torch's steps": partial(dense, model(folder, "float32", kernels=None)),
    }
    print(f"{'':<18}{'':<30}{'ms':>9}{'docs/s':>10}{'tokens/s':>11}")
    for name, rows in workloads.items():
        seconds = measured({kind: partial(run, rows) for kind, run in variants.items()}, rounds)
        for kind, taken in seconds.items():
            tokens = sum(len(row) for row in rows)
            print(f"{name:<18}{kind:<30}{taken * 1e3:>9.2f}{len(rows) / taken:>10.0f}{tokens / taken:>11.0f}")
            name = ""


def cold_start(folder: Path, rounds: int) -> None:
    """From the start of a process to its first vector, with warm file caches."""
    readings = []
    for _ in range(rounds):
        began = time.time()
        code = COLD_START.format(model=MODEL, folder=str(folder))
        output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        readings.append(np.diff([began, *(float(reading) for reading in output.split())]))
    steps = np.median(readings, axis=0)
    print("\ncold start, process start to first vector")
    for step, seconds in zip(STEPS, steps, strict=True):
        print(f"  {step:<28}{seconds:>8.3f} s")
    print(f"  {'in all':<28}{np.median(np.sum(readings, axis=1)):>8.3f} s")


def measured(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each run; in each round each runs for a third of a second."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            until = time.perf_counter() + 0.3
            while (began := time.perf_counter()) < until:
                run()
                samples[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def model(folder: Path, precision: str = "auto", kernels: Path | None = native.KEPT) -> EncoderModel:
    """The model as it is served, or without compiled code."""
    made = load(Checkpoint(SPEC, folder), "cpu", precision, kernels)
    assert isinstance(made, EncoderModel)
    return made


def dense(of: EncoderModel, rows: Sequence[Row]) -> object:
    """One forward pass to vectors."""
    return of.forward(rows, {"dense": range(len(rows))})


def row_of(length: int, seed: int = 0) -> Row:
    """Random tokens between [CLS] and [SEP]."""
    middle = np.random.default_rng(seed).integers(1000, 30_000, size=length - 2)
    return row([101, *middle.tolist(), 102])


def short_row() -> Row:
    """What a query of six words comes to."""
    return row_of(8)


def mixed_rows(count: int) -> list[Row]:
    """Lengths as of passages: log-normal around 40 tokens, 8 to 256."""
    lengths = np.random.default_rng(1).lognormal(3.7, 0.7, size=count).clip(8, 256).astype(int)
    return [row_of(int(length), seed) for seed, length in enumerate(lengths)]


if __name__ == "__main__":
    main()
