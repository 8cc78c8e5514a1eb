"""What a worker says of itself: one heartbeat a second, and one at once when something changes.

Owns the worker's name, its milestones since the process started and the state it announces. Readers judge by age.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from sie_broker import clock, process
from sie_broker.contract import Broker
from sie_broker.ending import cancelled
from sie_broker.records import Lane, LoadFailure, WorkerState
from sie_sdk.errors import QueueUnavailableError, SIEError

log = logging.getLogger("sie.bundle.presence")

BEAT_S = 1.0
FAULT = 300
"""Characters of the first line of what keeps it from starting."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_made = itertools.count(1)


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
    """Announces one worker.

    Args:
        spawned_at: when its start was decided, seconds since the epoch; 0: nobody said, so when its process began.
    """

    def __init__(self, broker: Broker, lane: Lane, counts: Callable[[], Counts], spawned_at: float = 0.0) -> None:
        self.worker = _name(next(_made))
        self.state: Literal["starting", "ready", "draining"] = "starting"
        self.startup: dict[str, float] = {}
        self._broker = broker
        self._lane = lane
        self._home = lane.pool
        self._counts = counts
        self._spawned_at = spawned_at or process.began()
        self._changed = asyncio.Event()
        self._fault = ""

    def milestone(self, name: str, at: float | None = None) -> None:
        """Note when a step of the start-up was done: now, or ``at`` (``time.time()``); the first time counts."""
        self.startup.setdefault(name, round((at or time.time()) - self._spawned_at, 3))

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
            fault=self._fault,
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

    async def cannot_start(self, error: Exception) -> None:
        """Tell why this worker leaves before it was ready: callers are told so when no other comes."""
        code = error.code if isinstance(error, SIEError) else type(error).__name__
        self.state, self._fault = "draining", f"{code} {str(error).partition(chr(10))[0]}"[:FAULT]
        try:
            await self._broker.beat(self.now())
        except QueueUnavailableError as unheard:
            log.warning("left without a word: %s", unheard)

    async def goodbye(self) -> None:
        """Take the worker off the table."""
        try:
            await self._broker.presence.delete(self.worker)
        except QueueUnavailableError as error:
            log.warning("left without goodbye: %s", error)


def _name(number: int) -> str:
    """Without a number of a process's first worker, mostly its only one; ``sie serve`` has one for each lane."""
    return f"{socket.gethostname()}-{os.getpid()}" + (f"-{number}" if number > 1 else "")


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # not Linux
        return 0
