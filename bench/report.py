"""What one comparison measured, and the tables made of it. Owns medians, ratios and wording."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench import installs
from bench.corpus import Workload
from bench.load import Slice
from bench.machine import flops_per_token
from bench.peers import OURS, OURS_FP16, OURS_FP32, OURS_TORCH, OURS_UP, Peer
from bench.processes import Memory
from bench.table import show

PARITY = 0.9999
MB = 1e6


class Reading(NamedTuple):
    """One slice, the CPU seconds its processes took in it, and the most bytes they held (RSS)."""

    slice: Slice
    cpu_s: float
    peak: int


@dataclass
class Measured:
    """Everything one run on ``cores`` cores noted, by peer's name, or by peer's and workload's."""

    cores: int
    load_generator: str
    skipped: dict[str, str]
    starts: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    cosine: dict[str, float] = field(default_factory=dict)
    readings: dict[tuple[str, str], list[Reading]] = field(default_factory=dict)
    precision: str = ""
    in_turns: list[dict[str, Reading]] = field(default_factory=list)

    def latency_ms(self, name: str, workload: str, percentile: float) -> float:
        """Of a request, the median of the rounds' percentiles."""
        slices = [reading.slice for reading in self.readings[name, workload]]
        return statistics.median(float(np.percentile(one.latencies, percentile)) * 1000 for one in slices)

    def rivals(self, workload: str) -> list[str]:
        """The peers measured on a workload whose vectors are the reference's."""
        passed = [name for name, cosine in self.cosine.items() if cosine >= PARITY]
        ours = (OURS, OURS_FP32, OURS_FP16, OURS_TORCH, OURS_UP)
        return [name for name in passed if name not in ours and (name, workload) in self.readings]


def rate(readings: Sequence[Reading]) -> float:
    """Texts per second, the median."""
    return statistics.median(reading.slice.items / reading.slice.seconds for reading in readings)


def rate_of_cpu(readings: Sequence[Reading]) -> float:
    """Texts per second of CPU time, the median: a busy neighbour takes nothing of it but cache."""
    return statistics.median(reading.slice.items / reading.cpu_s for reading in readings)


def show_all(measured: Measured, every: Sequence[Workload], present: Sequence[Peer]) -> None:
    """Print every table."""
    cores = f"{measured.cores} core{'s' if measured.cores > 1 else ''}"
    for workload in every:
        if (OURS, workload.name) in measured.readings:
            _workload(measured, workload, present, cores)
            _best(measured, workload.name)
    if measured.in_turns:
        documents = next(workload for workload in every if workload.name == "documents")
        _machine(measured, documents.tokens_per_text, cores)
    rows = [
        [
            name,
            f"{statistics.median(measured.starts[name]):.2f}" if name in measured.starts else "",
            *(f"{value / MB:.0f}" for value in memory[:2]),
        ]
        for name, memory in measured.memory.items()
    ]
    headings = ["", "start to first vector, s", "RSS MB after 200 requests", "PSS MB"]
    show(f"{cores}: process start and memory with this one model", headings, rows)
    for name, reason in measured.skipped.items():
        print(f"\n{name} skipped: {reason}")


def _workload(measured: Measured, workload: Workload, present: Sequence[Peer], cores: str) -> None:
    name, texts = workload.name, len(workload.requests[0])
    ours = rate(measured.readings[OURS, name])
    rows = []
    for peer in present:
        if not (readings := measured.readings.get((peer.name, name))):
            continue
        cosine = measured.cosine.get(peer.name)
        rows.append(
            [
                peer.about,
                f"{rate(readings):.1f}",
                f"{measured.latency_ms(peer.name, name, 50):.1f}",
                f"{measured.latency_ms(peer.name, name, 99):.1f}",
                f"{rate_of_cpu(readings):.1f}",
                f"{max(reading.peak for reading in readings) / MB:.0f}",
                "" if cosine is None else f"{cosine:.6f}",
                f"{ours / rate(readings):.2f}",
            ]
        )
    title = (
        f"{cores}, {name}: {workload.clients} client{'s' if workload.clients > 1 else ''}, "
        f"{texts} text{'s' if texts > 1 else ''} a request, {workload.tokens_per_text:.0f} tokens a text, "
        f"load generator {measured.load_generator}"
    )
    headings = ["", "texts/s", "p50 ms", "p99 ms", "texts per CPU s", "peak RSS MB", "cosine", "ours / its"]
    show(title, headings, rows)


def _best(measured: Measured, workload: str) -> None:
    """Ours against the best that passes parity."""
    rivals = measured.rivals(workload)
    if not rivals:
        return
    if workload == "single":
        best = min(rivals, key=lambda name: measured.latency_ms(name, workload, 50))
        ours, its = (measured.latency_ms(name, workload, 50) for name in (OURS, best))
        print(f"\np50 {ours:.1f} ms against {its:.1f} ms of the best at parity ({best}).")
    else:
        best = max(rivals, key=lambda name: rate(measured.readings[name, workload]))
        both = [measured.readings[name, workload] for name in (OURS, best)]
        by_clock, by_cpu = (each(both[0]) / each(both[1]) for each in (rate, rate_of_cpu))
        print(f"\n{by_clock:.2f} times the best at parity ({best}); by CPU time {by_cpu:.2f}.")


def _machine(measured: Measured, tokens: float, cores: str) -> None:
    """The documents workload against the machine's own rate."""
    flops = flops_per_token(installs.own_weights()) * tokens
    rows = []
    for what, about in (
        ("gemm", f"matrix products alone (weights in {measured.precision})"),
        ("engine", "our engine in one process"),
        ("server", "our server"),
    ):
        readings = [turns[what] for turns in measured.in_turns]
        shares = (
            statistics.median(each([turns[what]]) / each([turns["gemm"]]) for turns in measured.in_turns)
            for each in (rate, rate_of_cpu)
        )
        rates = (f"{rate(readings) * each:.0f}" for each in (1, tokens, flops / 1e9))
        rows.append([about, *rates, *(f"{share:.0%}" for share in shares)])
    title = f"{cores}: documents against the machine, in turns (FLOP of the linear layers only)"
    show(title, ["", "texts/s", "tokens/s", "GFLOP/s", "of the machine", "of it by CPU time"], rows)
