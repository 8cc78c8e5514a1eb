"""What a worker says of itself: one heartbeat a second, and one at once when something changes.

Owns the worker's name, its milestones since the process started and the state it announces. Readers judge by age.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from sie_broker import clock
from sie_broker.contract import Broker
from sie_broker.jetstream.connection import cancelled
from sie_broker.records import Lane, LoadFailure, WorkerState
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.bundle.presence")

BEAT_S = 1.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Counts(NamedTuple):
    """What the worker has and did since its start; the fields of `WorkerState`."""

    models: tuple[str, ...] = ()
    in_flight: int = 0
    completed: int = 0
    forwards: int = 0
    busy_s: float = 0.0
    full_s: float = 0.0
    bundle_config_hash: str = ""
    loading: tuple[str, ...] = ()
    failed: Mapping[str, LoadFailure] = {}
    device: str = "cpu"
    device_bytes: int = 0
    total_bytes: int = 0
    batches: int = 0
    waiting_tokens: int = 0


class Presence:
    """Announces one worker. ``spawned_at``: when its start was decided, seconds since the epoch."""

    def __init__(self, broker: Broker, lane: Lane, counts: Callable[[], Counts], spawned_at: float = 0.0) -> None:
        self.worker = f"{socket.gethostname()}-{os.getpid()}"
        self.state: Literal["starting", "ready", "draining"] = "starting"
        self.startup: dict[str, float] = {}
        self._broker = broker
        self._lane = lane
        self._home = lane.pool
        self._counts = counts
        self._spawned_at = spawned_at or time.time()
        self._changed = asyncio.Event()

    def milestone(self, name: str) -> None:
        """Note when a step of the start-up was done; the first time counts."""
        self.startup.setdefault(name, round(time.time() - self._spawned_at, 3))

    def became(self, state: Literal["ready", "draining"]) -> None:
        """Change the state and tell it at once."""
        self.state = state
        self._changed.set()

    def changed(self) -> None:
        """Beat now: a model was loaded, for instance."""
        self._changed.set()

    def move(self, pool: str) -> None:
        """Work for another pool from now on, and tell it at once."""
        self._lane = msgspec.structs.replace(self._lane, pool=pool)
        self._changed.set()

    def now(self) -> WorkerState:
        """The state as of now."""
        return WorkerState(
            worker=self.worker,
            lane=self._lane,
            state=self.state,
            at=clock.now(),
            home=self._home,
            **self._counts()._asdict(),
            memory_bytes=_resident_bytes(),
            startup=self.startup,
        )

    async def beat(self) -> None:
        """Announce until cancelled."""
        while not cancelled():
            self._changed.clear()
            try:
                await self._broker.beat(self.now())
            except QueueUnavailableError as error:
                log.warning("no heartbeat: %s", error)
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def goodbye(self) -> None:
        """Take the worker off the table."""
        try:
            await self._broker.presence.delete(self.worker)
        except QueueUnavailableError as error:
            log.warning("left without goodbye: %s", error)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # not Linux
        return 0
