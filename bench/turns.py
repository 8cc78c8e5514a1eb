"""Our server beside the machine's own rate: a turn of a quarter of a second each, since a shared machine's speed may
change by half within minutes.

The server is loaded all the while and sleeps in the middle of its work while it is not its turn, so that no turn begins
or ends with an empty queue. Owns the turns; what the machine does in its own is ``machine``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from bench.corpus import Workload
from bench.load import Slice
from bench.report import Reading
from bench.running import Server, Worker

TURN_S = 0.25
"""Some passes of documents, and far less than the time in which a machine's speed changes."""


def in_turns(server: Server, machine: Worker, workload: Workload, seconds: float) -> dict[str, Reading]:
    """What each did in its turns, by ``server``, ``gemm`` and ``engine``; latencies are left out.

    Args:
        server: awake; it is left paused.
        machine: paused; it is left so.
        seconds: of all turns of the server; its last answers are waited for, and count.
    """
    ours, alone = Turns(server), {what: Turns(machine) for what in ("gemm", "engine")}
    server.pinned.pause()
    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(server.measure, workload, seconds * (1 + len(alone)))
        while not load.done():
            with ours.turn():
                wait([load], TURN_S)  # its last turn ends with its last answer
            for what, turns in alone.items():
                with turns.turn():
                    items, taken, _ = machine.order(do=what, seconds=TURN_S)
                turns.items, turns.seconds = turns.items + items, turns.seconds + taken
    ours.items, ours.seconds = load.result().items, ours.awake_s  # it computes until it is stopped
    return {what: turns.reading() for what, turns in {"server": ours, **alone}.items()}


class Turns:
    """The account of one who takes turns: ``items`` in ``seconds`` of work."""

    def __init__(self, running: Server | Worker) -> None:
        self.items = self.seconds = 0.0
        self.awake_s = self._cpu_s = 0.0
        self._pinned = running.pinned

    @contextmanager
    def turn(self) -> Iterator[None]:
        """It is awake meanwhile."""
        cpu_s = self._pinned.cpu_s()
        self._pinned.resume()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._pinned.pause()
            self.awake_s += time.perf_counter() - began
            self._cpu_s += self._pinned.cpu_s() - cpu_s

    def reading(self) -> Reading:
        """The sums."""
        return Reading(Slice(self.items, self.seconds, []), self._cpu_s, 0)
