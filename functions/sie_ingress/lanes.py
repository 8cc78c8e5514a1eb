"""Which lanes are warm, and how long the cold ones take: what workers say of themselves, by age.

Owns the table of heartbeats and the measured cold starts. It decides nothing; ``submit`` asks it.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec

from sie_broker.connection import cancelled
from sie_broker.contract import Broker, Lane, WorkerState
from sie_broker.pools import service_of
from sie_broker.subjects import lane_key
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.ingress.lanes")

STALE_S = 5.0
"""A worker that has not been heard of for this long is gone; it beats once a second."""

_state = msgspec.msgpack.Decoder(WorkerState)
_history = msgspec.json.Decoder(list[float])


class Lanes:
    """Live workers by lane. ``default_s``: the cold start assumed until one was measured."""

    def __init__(self, broker: Broker, default_s: float, clock: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self._default_s = default_s
        self._clock = clock
        self._workers: dict[str, WorkerState] = {}
        self._woken: dict[Lane, float] = {}
        self._cold_starts: defaultdict[Lane, deque[float]] = defaultdict(lambda: deque(maxlen=8))
        self._saves: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Keep the table up to date until cancelled."""
        async with self._broker.presence.watch(self.heard):
            await self._read_presence()
            while not cancelled():
                await asyncio.sleep(60)
                await self._read_presence()

    async def _read_presence(self) -> None:
        try:
            for worker, value in (await self._broker.presence.entries()).items():
                self.heard(worker, value)
        except QueueUnavailableError as error:
            log.warning("presence was not read: %s", error)

    def heard(self, worker: str, value: bytes | None) -> None:
        """Take in one heartbeat; None: the worker said goodbye."""
        if value is None:
            self._workers.pop(worker, None)
            return
        state = _state.decode(value)
        self._workers[worker] = state
        woken = self._woken.pop(state.lane, None) if state.state == "ready" else None
        # Away from home it may have been up already, and only changed its pool.
        if woken is not None and state.lane.pool == state.home:
            self._measured(state.lane, self._clock() - woken)

    def workers(self) -> list[WorkerState]:
        """Everybody heard of within `STALE_S`."""
        oldest = self._clock() - STALE_S
        for worker in [name for name, state in self._workers.items() if state.at < oldest]:
            del self._workers[worker]
        return list(self._workers.values())

    def live(self, lane: Lane) -> bool:
        """Whether a ready worker serves the lane now."""
        return any(state.lane == lane and state.state == "ready" for state in self.workers())

    def woken(self, lane: Lane) -> None:
        """Work was queued on a cold lane; from now on a cold start is being measured."""
        self._woken.setdefault(lane, self._clock())

    async def retry_after(self, lane: Lane) -> float:
        """Seconds until a woken lane is expected to answer: the median cold start less what has passed of it, >= 1.

        The workers of a pool start in the default one, so theirs count where none are known of its own.
        """
        for each in (lane, service_of(lane)):
            if each not in self._cold_starts:
                await self._recall(each)
        known = self._cold_starts[lane] or self._cold_starts[service_of(lane)]
        expected = statistics.median(known or [self._default_s])
        return max(1.0, expected - (self._clock() - self._woken.get(lane, self._clock())))

    async def _recall(self, lane: Lane) -> None:
        try:
            if (saved := await self._broker.lanes.get(lane_key(lane))) is not None:
                self._cold_starts[lane].extend(_history.decode(saved))
        except (QueueUnavailableError, msgspec.DecodeError) as error:
            log.warning("the cold starts of %s are not known: %s", lane, error)

    def _measured(self, lane: Lane, seconds: float) -> None:
        self._cold_starts[lane].append(round(seconds, 3))
        log.info("cold start of %s took %.1f s", lane, seconds)
        task = asyncio.get_running_loop().create_task(self._save(lane))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _save(self, lane: Lane) -> None:
        try:
            await self._broker.lanes.put(lane_key(lane), msgspec.json.encode(list(self._cold_starts[lane])))
        except QueueUnavailableError as error:
            log.warning("the cold start of %s was not saved: %s", lane, error)
