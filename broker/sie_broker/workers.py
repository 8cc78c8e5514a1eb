"""The workers as one process hears of them: the table of heartbeats, judged by age.

Owns the table and what "live" means. Nobody is believed longer than `STALE_S`, whether or not a goodbye came; who reads
``at`` needs a clock near the sender's. What follows from it is decided by the reader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from sie_broker.contract import Bucket, Lane, WorkerState

log = logging.getLogger("sie.broker.workers")

STALE_S = 5.0
"""A worker that has not been heard of for this long is gone; it beats once a second."""

_states = msgspec.msgpack.Decoder(WorkerState)


class Workers:
    """Everybody heard of within `STALE_S`. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._states: dict[str, WorkerState] = {}

    async def read(self, presence: Bucket) -> None:
        """Take in everybody who is in the bucket.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        for worker, value in (await presence.entries()).items():
            self.heard(worker, value)

    def heard(self, worker: str, value: bytes | None) -> WorkerState | None:
        """Take in one heartbeat and return it; None: the worker said goodbye, or what it said cannot be read."""
        if value is None:
            self._states.pop(worker, None)
            return None
        try:
            state = _states.decode(value)
        except msgspec.DecodeError as fault:
            log.warning("heartbeat of %s cannot be read: %s", worker, fault)
            return None
        self._states[worker] = state
        return state

    def all(self) -> list[WorkerState]:
        """Everybody, in whatever state."""
        oldest = self._clock() - STALE_S
        for worker in [name for name, state in self._states.items() if state.at < oldest]:
            del self._states[worker]
        return list(self._states.values())

    def ready(self, lane: Lane) -> int:
        """How many serve the lane now."""
        return sum(state.lane == lane and state.state == "ready" for state in self.all())

    def present(self) -> dict[Lane, int]:
        """How many each lane has that are not leaving."""
        counts: dict[Lane, int] = {}
        for state in self.all():
            if state.state != "draining":
                counts[state.lane] = counts.get(state.lane, 0) + 1
        return counts
