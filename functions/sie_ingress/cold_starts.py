"""How long cold lanes take to answer: measured from the first wake to the first ready worker, and remembered.

Owns the measurements, in memory and in the lanes bucket, so that they outlive this ingress. Who is up is told by
``lanes``.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec

from sie_broker.contract import Bucket
from sie_broker.pools.pool import service_of
from sie_broker.records import Lane
from sie_broker.subjects import lane_key
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.ingress.lanes")

_history = msgspec.json.Decoder(list[float])


class ColdStarts:
    """The last cold starts of each lane. ``default_s``: what is assumed until one was measured."""

    def __init__(self, bucket: Bucket, default_s: float, clock: Callable[[], float]) -> None:
        self._bucket = bucket
        self._default_s = default_s
        self._clock = clock
        self._woken: dict[Lane, float] = {}
        self._taken: defaultdict[Lane, deque[float]] = defaultdict(lambda: deque(maxlen=8))
        self._saves: set[asyncio.Task[None]] = set()

    def woken(self, lane: Lane) -> None:
        """Work was queued on a cold lane; from now on a cold start is being measured."""
        self._woken.setdefault(lane, self._clock())

    def rested(self, lane: Lane, at: float) -> None:
        """Nobody was up at ``at``, and nothing asked for anybody: what was woken before has come to nothing."""
        if self._woken.get(lane, at) < at:
            del self._woken[lane]

    def given_up(self, lane: Lane) -> None:
        """How long it takes to mend what keeps a lane's workers away says nothing of how long they take to come."""
        self._woken.pop(lane, None)

    def gone(self, lane: Lane) -> None:
        """The lane's pool is no more; a lane of its name is another."""
        self._woken.pop(lane, None)
        self._taken.pop(lane, None)

    def ready(self, lane: Lane, *, started: bool) -> None:
        """A worker serves the lane. ``started``: it came up for it, and was not only moved there."""
        woken = self._woken.pop(lane, None)
        if woken is not None and started:
            self._measured(lane, self._clock() - woken)

    async def left_s(self, lane: Lane, missing_since: float = 0.0) -> float:
        """Seconds until a woken lane is expected to be up: the median cold start less what has passed of it.

        Below 0 it is late by so much. ``missing_since``: since when its workers are missed, as others know; 0: nobody.

        The workers of a pool start in the default one, so theirs count where none are known of its own.
        """
        for each in (lane, service_of(lane)):
            if each not in self._taken:
                await self._recall(each)
        known = self._taken[lane] or self._taken[service_of(lane)]
        expected = statistics.median(known or [self._default_s])
        now = self._clock()
        return expected - (now - min(self._woken.get(lane, now), missing_since or now))

    async def _recall(self, lane: Lane) -> None:
        try:
            if (saved := await self._bucket.get(lane_key(lane))) is not None:
                self._taken[lane].extend(_history.decode(saved))
        except (QueueUnavailableError, msgspec.DecodeError) as error:
            log.warning("the cold starts of %s are not known: %s", lane, error)

    def _measured(self, lane: Lane, seconds: float) -> None:
        self._taken[lane].append(round(seconds, 3))
        log.info("cold start of %s took %.1f s", lane, seconds)
        task = asyncio.get_running_loop().create_task(self._save(lane))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _save(self, lane: Lane) -> None:
        try:
            await self._bucket.put(lane_key(lane), msgspec.json.encode(list(self._taken[lane])))
        except QueueUnavailableError as error:
            log.warning("the cold start of %s was not saved: %s", lane, error)
