"""The comparison with the field: the same texts to every peer in turns, on one pinned core and on two.

    python -m bench compare [--seconds N] [--rounds N] [--cores 1,2] [--peers tei,infinity] [--workloads short,mixed]

All peers are up at once and paused; each is woken for its slice only, and slices take turns, so that a busy neighbour
disturbs all alike. Figures are medians over the rounds. Owns the order of events; the tables are made in ``report``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from bench import installs, report
from bench.corpus import Workload, workloads
from bench.installs import Unavailable
from bench.load import LoadError, Slice
from bench.peers import OURS, REFERENCE, Peer, machine, peers
from bench.report import Measured, Reading
from bench.running import Server, Vectors, Worker, first_vector
from bench.turns import in_turns

WARM_UP_S = 0.5
REQUESTS_BEFORE_MEMORY = 200


def main() -> None:
    """Install, measure, print. Ctrl-C and SIGTERM end it like an error, so that nothing is left behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    asked = _options().parse_args()
    every = workloads(installs.own_weights() / "tokenizer.json")
    chosen = [workload for workload in every if not asked.workloads or workload.name in asked.workloads.split(",")]
    present, skipped = _installed(peers(every), asked.peers.split(",") if asked.peers else [])
    for count in map(int, asked.cores.split(",")):
        cores = sorted(os.sched_getaffinity(0))[:count]
        with _load_generator_beside(cores) as where, ExitStack() as stack:
            table = Table(cores, stack, Measured(len(cores), where, dict(skipped)))
            for peer in present:
                table.start(peer, asked.starts)
            table.start_machine(every)
            table.check(every)
            for number in range(asked.rounds):
                table.round(f"{count} core, round {number + 1} of {asked.rounds}", chosen, asked.seconds)
            report.show_all(table.measured, every, present)


class Table:
    """One run on some cores: who is up, and what was measured so far. ``stack`` stops everybody in the end."""

    def __init__(self, cores: Sequence[int], stack: ExitStack, measured: Measured) -> None:
        self.measured = measured
        self._cores = cores
        self._stack = stack
        self._running: dict[str, Server | Worker] = {}
        self._machine: Worker | None = None

    def start(self, peer: Peer, starts: int) -> None:
        """Start it as often as asked, then leave it up and paused; note seconds to the first vector, and memory."""
        try:
            for left in reversed(range(starts)):
                began = time.monotonic()
                running = peer.start(self._cores)
                self._stack.callback(running.pinned.stop)
                first_vector(running)
                self.measured.starts.setdefault(peer.name, []).append(time.monotonic() - began)
                if left:
                    running.pinned.stop()
            running.vectors(["how do I reset my password?"] * REQUESTS_BEFORE_MEMORY, at_once=False)
        except (Unavailable, LoadError) as reason:
            self._skip(peer.name, reason)
        else:
            self.measured.memory[peer.name] = running.pinned.memory()
            if peer.part:
                self.measured.memory[f"{peer.name}, {peer.part} alone"] = running.pinned.memory(peer.part)
            running.pinned.pause()
            self._running[peer.name] = running
            _say(f"{peer.name}: first vector after {self.measured.starts[peer.name][-1]:.2f} s")

    def start_machine(self, every: Sequence[Workload]) -> None:
        """The process that measures matrix products and our engine alone."""
        self._machine = machine(self._cores, every)
        self._stack.callback(self._machine.pinned.stop)
        self.measured.precision = self._machine.order(do="precision")
        self._machine.pinned.pause()

    def check(self, every: Sequence[Workload]) -> None:
        """Cosine of each peer's vectors, alone and 32 at once, with the reference's one by one."""
        if REFERENCE not in self._running:
            return
        texts = [texts[0].text for workload in every for texts in workload.requests[:16]]
        texts += [text.text for text in every[2].requests[0]]
        truth = self._vectors(REFERENCE, texts, at_once=False)
        for name in list(self._running):
            try:
                found = [self._vectors(name, texts[at : at + 32], at_once=True) for at in range(0, len(texts), 32)]
                alone = self._vectors(name, texts, at_once=False)
            except (Unavailable, LoadError) as reason:
                self._skip(name, reason)
            else:
                self.measured.cosine[name] = min(_cosine(truth, alone), _cosine(truth, np.concatenate(found)))
                _say(f"{name}: cosine {self.measured.cosine[name]:.6f}")

    def round(self, title: str, chosen: Sequence[Workload], seconds: float) -> None:
        """One slice of every workload for everybody who is up."""
        for workload in chosen:
            rates = []
            for name in list(self._running):
                try:
                    measured = self._slice(name, workload, seconds)
                except (Unavailable, LoadError) as reason:
                    self._skip(name, reason)
                else:
                    rates.append(f"{name} {measured.items / measured.seconds:.0f}")
            if workload.name == "documents":
                self._in_turns(workload, seconds)
            _say(f"{title}, {workload.name}, texts/s: {', '.join(rates)}")

    def _slice(self, name: str, workload: Workload, seconds: float) -> Slice:
        with _awake(running := self._running[name]):
            running.measure(workload, WARM_UP_S)
            running.pinned.forget_peak()
            before = running.pinned.cpu_s()
            measured = running.measure(workload, seconds)
            cpu_s = running.pinned.cpu_s() - before
            reading = Reading(measured, cpu_s, running.pinned.memory().peak)
        self.measured.readings.setdefault((name, workload.name), []).append(reading)
        return measured

    def _in_turns(self, workload: Workload, seconds: float) -> None:
        assert self._machine is not None
        if isinstance(server := self._running.get(OURS), Server):
            try:
                with _awake(server):
                    self.measured.in_turns.append(in_turns(server, self._machine, workload, seconds))
            except (Unavailable, LoadError) as reason:
                self._skip(OURS, reason)

    def _vectors(self, name: str, texts: Sequence[str], *, at_once: bool) -> Vectors:
        with _awake(self._running[name]):
            return self._running[name].vectors(texts, at_once=at_once)

    def _skip(self, name: str, reason: Exception) -> None:
        self.measured.skipped[name] = str(reason)
        _say(f"{name}: skipped, {reason}")
        if running := self._running.pop(name, None):
            running.pinned.stop()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of one slice")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="1,2", help="one run and its tables for each")
    parser.add_argument("--peers", default="", help="names separated by commas; all without it")
    parser.add_argument("--workloads", default="", help="of single, short, documents, mixed; all without it")
    parser.add_argument("--starts", type=int, default=1, help="cold starts of each peer; the median is shown")
    return parser


def _installed(everyone: Sequence[Peer], names: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """Those that can be had, and why the others cannot. Ours and the reference are always among them."""
    if unknown := set(names) - {peer.name for peer in everyone}:
        sys.exit(f"No peer {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in everyone)}.")
    present: list[Peer] = []
    skipped: dict[str, str] = {}
    for peer in everyone:
        if names and peer.name not in {*names, OURS, REFERENCE}:
            continue
        try:
            peer.install(_say)
            present.append(peer)
        except Unavailable as reason:
            skipped[peer.name] = str(reason)
            _say(f"{peer.name}: skipped, {reason}")
    return present, skipped


@contextmanager
def _load_generator_beside(cores: Sequence[int]) -> Iterator[str]:
    """Keep this process off the measured cores if the machine has another one."""
    before = os.sched_getaffinity(0)
    others = before - set(cores)
    os.sched_setaffinity(0, others or before)
    try:
        yield "on a core of its own" if others else "on the same cores"
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _awake(running: Server | Worker) -> Iterator[None]:
    running.pinned.resume()
    try:
        first_vector(running)  # what was lost while it slept, such as a connection to NATS, comes back with it
        yield
    finally:
        running.pinned.pause()


def _cosine(truth: Vectors, found: Vectors) -> float:
    """The smallest of the rows'."""
    lengths = np.linalg.norm(truth, axis=1) * np.linalg.norm(found, axis=1)
    return float(((truth * found).sum(axis=1) / lengths).min())


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
