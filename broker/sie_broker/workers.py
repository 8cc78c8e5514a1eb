"""The workers as one process hears of them: the table of heartbeats, judged by age.

Owns the table and what "live" means. Nobody is believed longer than `STALE_S`, whether or not a goodbye came; ``at`` is
in the deployment's time (``clock``). What follows from it is decided by the reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from sie_broker import clock
from sie_broker.contract import Bucket
from sie_broker.records import Lane, WorkerState

log = logging.getLogger("sie.broker.workers")

STALE_S = 5.0
"""A worker that has not been heard of for this long is gone; it beats once a second."""


class _Ready(NamedTuple):
    """When a worker was last heard of, and what it has loaded."""

    at: float
    models: frozenset[str]


_states = msgspec.msgpack.Decoder(WorkerState)


class Workers:
    """Everybody heard of within `STALE_S`. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._states: dict[str, WorkerState] = {}
        self._ready: dict[Lane, dict[str, _Ready]] = {}
        """The ready workers of each lane that has any: every request asks for its lane, of whatever pool."""

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
            self._forget(worker)
            return None
        try:
            state = _states.decode(value)
        except msgspec.DecodeError as fault:
            log.warning("heartbeat of %s cannot be read: %s", worker, fault)
            return None
        self._forget(worker)
        self._states[worker] = state
        if state.state == "ready":
            models = frozenset(name.partition(":")[0] for name in state.models)  # with whatever LoRA
            self._ready.setdefault(state.lane, {})[worker] = _Ready(state.at, models)
        return state

    def _forget(self, worker: str) -> None:
        if (before := self._states.pop(worker, None)) is not None and (ready := self._ready.get(before.lane)):
            ready.pop(worker, None)
            if not ready:
                del self._ready[before.lane]

    def all(self) -> list[WorkerState]:
        """Everybody, in whatever state."""
        oldest = self._clock() - STALE_S
        for worker in [name for name, state in self._states.items() if state.at < oldest]:
            self._forget(worker)
        return list(self._states.values())

    def _of(self, lane: Lane) -> Collection[_Ready]:
        return self._ready.get(lane, {}).values()

    def ready(self, lane: Lane) -> int:
        """How many serve the lane now."""
        oldest = self._clock() - STALE_S
        return sum(ready.at >= oldest for ready in self._of(lane))

    def live(self, lane: Lane) -> bool:
        """Whether anybody does."""
        oldest = self._clock() - STALE_S
        return any(ready.at >= oldest for ready in self._of(lane))

    def holds(self, lane: Lane, model: str) -> bool:
        """Whether anybody who serves the lane has the model loaded."""
        oldest = self._clock() - STALE_S
        return any(model in ready.models and ready.at >= oldest for ready in self._of(lane))

    def present(self) -> dict[Lane, int]:
        """How many each lane has that are not leaving."""
        counts: dict[Lane, int] = {}
        for state in self.all():
            if state.state != "draining":
                counts[state.lane] = counts.get(state.lane, 0) + 1
        return counts
