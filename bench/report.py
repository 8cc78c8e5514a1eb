"""What one comparison measured, and the tables made of it. Owns medians, ratios and wording."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench import installs
from bench.corpus import Workload
from bench.load import Slice
from bench.machine import flops_per_token
from bench.peers import OURS, Peer
from bench.processes import Memory
from bench.table import show

PARITY = 0.9999
MB = 1e6


@dataclass
class Measured:
    """Everything one run on ``cores`` cores noted, by peer's name, or by peer's and workload's."""

    cores: int
    load_generator: str
    skipped: dict[str, str]
    starts: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    cosine: dict[str, float] = field(default_factory=dict)
    slices: dict[tuple[str, str], list[Slice]] = field(default_factory=dict)
    peaks: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    gemm: list[Slice] = field(default_factory=list)
    engine: list[Slice] = field(default_factory=list)

    def rate(self, name: str, workload: str) -> float:
        """Texts per second, the median of the rounds; 0 where there is none."""
        return rate(self.slices.get((name, workload), []))

    def latency_ms(self, name: str, workload: str, percentile: float) -> float:
        """Of a request, the median of the rounds' percentiles."""
        slices = self.slices[name, workload]
        return statistics.median(float(np.percentile(one.latencies, percentile)) * 1000 for one in slices)

    def at_parity(self) -> list[str]:
        """The peers, ours left out, whose vectors are the reference's."""
        return [name for name, cosine in self.cosine.items() if cosine >= PARITY and not name.startswith(OURS + "-up")]


def rate(slices: Sequence[Slice]) -> float:
    """Texts per second, the median of the slices."""
    return statistics.median([one.items / one.seconds for one in slices] or [0.0])


def show_all(measured: Measured, every: Sequence[Workload], present: Sequence[Peer]) -> None:
    """Print every table."""
    cores = f"{measured.cores} core{'s' if measured.cores > 1 else ''}"
    for workload in every:
        if (OURS, workload.name) in measured.slices:
            _workload(measured, workload, present, cores)
    _machine(measured, every, cores)
    rows = [
        [name, f"{statistics.median(seconds):.2f}", *(f"{value / MB:.0f}" for value in measured.memory[name][:2])]
        for name, seconds in measured.starts.items()
        if name in measured.memory
    ]
    headings = ["", "start to first vector, s", "RSS MB after 200 requests", "PSS MB"]
    show(f"{cores}: process start and memory with this one model", headings, rows)
    for name, reason in measured.skipped.items():
        print(f"\n{name} skipped: {reason}")


def _workload(measured: Measured, workload: Workload, present: Sequence[Peer], cores: str) -> None:
    name = workload.name
    rows = []
    for peer in present:
        if (peer.name, name) not in measured.slices:
            continue
        cosine = measured.cosine.get(peer.name)
        rows.append(
            [
                f"{peer.name} ({peer.about})",
                f"{measured.rate(peer.name, name):.1f}",
                f"{measured.latency_ms(peer.name, name, 50):.1f}",
                f"{measured.latency_ms(peer.name, name, 99):.1f}",
                f"{max(measured.peaks[peer.name, name]) / MB:.0f}",
                "" if cosine is None else f"{cosine:.6f}",
                f"{measured.rate(OURS, name) / measured.rate(peer.name, name):.2f}",
            ]
        )
    texts = len(workload.requests[0])
    title = (
        f"{cores}, {name}: {workload.clients} client{'s' if workload.clients > 1 else ''}, {texts} "
        f"text{'s' if texts > 1 else ''} a request, {workload.tokens_per_text:.0f} tokens a text; "
        f"load generator {measured.load_generator}"
    )
    show(title, ["", "texts/s", "p50 ms", "p99 ms", "peak RSS MB", "cosine", "ours / its"], rows)
    _best(measured, name)


def _best(measured: Measured, workload: str) -> None:
    """Ours against the best that passes parity."""
    others = [name for name in measured.at_parity() if name != OURS and (name, workload) in measured.slices]
    if not others:
        return
    if workload == "single":
        best = min(others, key=lambda name: measured.latency_ms(name, workload, 50))
        ours, its = (measured.latency_ms(name, workload, 50) for name in (OURS, best))
        print(f"\np50 {ours:.1f} ms against {its:.1f} ms of the best at parity ({best}).")
    else:
        best = max(others, key=lambda name: measured.rate(name, workload))
        ours, its = (measured.rate(name, workload) for name in (OURS, best))
        print(f"\n{ours / its:.2f} times the best at parity ({best}).")


def _machine(measured: Measured, every: Sequence[Workload], cores: str) -> None:
    """The documents workload against the machine's own rate."""
    documents = next(workload for workload in every if workload.name == "documents")
    limit = rate(measured.gemm)
    if not limit:
        return
    flops = flops_per_token(installs.own_weights()) * documents.tokens_per_text
    rows = [
        [
            what,
            f"{texts:.1f}",
            f"{texts * documents.tokens_per_text:.0f}",
            f"{texts * flops / 1e9:.0f}",
            f"{texts / limit:.0%}",
        ]
        for what, texts in (
            ("matrix products alone (oneDNN, prepacked)", limit),
            ("our engine in one process", rate(measured.engine)),
            ("our server", measured.rate(OURS, "documents")),
        )
    ]
    title = f"{cores}: documents against the machine (GFLOP/s counts the linear layers only)"
    show(title, ["", "texts/s", "tokens/s", "GFLOP/s", "of the machine"], rows)
