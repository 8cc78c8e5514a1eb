"""Which queues a worker pulls: those of the models it has loaded, and those that somebody asked for lately.

A lane may have thousands of queues, and a pull costs its worker and the server something while nothing comes of it. So
nothing is pulled of a model that is not loaded and that nobody asks for. That somebody does is told by whoever submits
the work (`Broker.want`), and found out every second by looking at what waits: what was not told is late by that much.
Owns the choice; what becomes of a delivery is the worker's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from sie_broker.contract import Broker
from sie_broker.ending import cancelled, end
from sie_broker.records import PRIORITIES, Lane, Queue
from sie_config.registry import Registry
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.bundle.pulls")

LOOK_S = 1.0
"""How often is looked at what waits."""
WANTED_S = 60.0
"""For how long a queue is pulled after its model was loaded or somebody asked for it."""


class Pulls:
    """The pulls of one worker, whose models are those that ``registry`` gives the lane it was started in.

    ``loaded``: the ids of the models that are loaded now. ``pull``: pulls one queue until cancelled. ``clock``:
    seconds, steady.
    """

    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        lane: Lane,
        loaded: Callable[[], Collection[str]],
        pull: Callable[[Queue], Coroutine[Any, Any, None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._home = self._lane = lane
        self._loaded = loaded
        self._pull = pull
        self._clock = clock
        self._wanted: dict[Queue, float] = {}
        """When each queue was last wanted."""
        self._running: dict[Queue, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def queues(self) -> Collection[Queue]:
        """Those that are pulled now."""
        return self._running.keys()

    def start(self) -> None:
        """Pull from now on."""
        self._following = asyncio.create_task(self._follow())
        self.update()

    def want(self, queue: Queue) -> None:
        """Somebody asks for it."""
        if queue.lane == self._lane:
            self._wanted[queue] = self._clock()
            if self._following is not None and queue not in self._running and self._serves(queue):
                self._running[queue] = asyncio.create_task(self._pull(queue))

    def update(self) -> None:
        """Pull what is to be pulled now, and nothing else: models were loaded or let go, or the registry changed."""
        if self._following is None:
            return
        now = self._clock()
        for model in self._loaded():
            self._wanted.update((Queue(self._lane, model, priority), now) for priority in PRIORITIES)
        self._wanted = {queue: at for queue, at in self._wanted.items() if now - at < WANTED_S}
        pulled = {queue for queue in self._wanted if self._serves(queue)}
        for queue in [queue for queue, task in self._running.items() if queue not in pulled or task.done()]:
            self._end(queue)
        for queue in pulled - self._running.keys():
            self._running[queue] = asyncio.create_task(self._pull(queue))

    def move(self, pool: str) -> None:
        """Pull what waits for the same models in another pool."""
        self._lane = msgspec.structs.replace(self._lane, pool=pool)
        self._wanted.clear()
        self._moved.set()
        self.update()

    async def close(self) -> None:
        """Pull nothing more."""
        if self._following is None:
            return
        following, self._following = self._following, None
        for queue in list(self._running):
            self._end(queue)
        await end(following, *self._ending)

    def _serves(self, queue: Queue) -> bool:
        return self._registry.waits_in(queue.model, self._home)

    def _end(self, queue: Queue) -> None:
        task = self._running.pop(queue)
        if task.done():
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("the pull of %s ended and is begun again: %s", queue.model, error)
            return
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _follow(self) -> None:
        """Listen first, and look then: what comes in between is told."""
        while not cancelled():
            try:
                async with self._broker.on_wanted(lane := self._lane, self.want):
                    while lane == self._lane and not cancelled():
                        self._moved.clear()
                        for queue in await self._broker.waiting(lane):
                            self.want(queue)
                        self.update()
                        await self._pause()
            except QueueUnavailableError:  # the connection says so; what is pulled stays
                await self._pause()
            except Exception:  # without the next look, a worker would stay deaf
                log.exception("what waits was not looked at")
                await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._moved.wait()
