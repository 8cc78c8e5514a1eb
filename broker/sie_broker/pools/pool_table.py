"""The pools as one process sees them: the pools bucket, mirrored in memory so that a look costs no network call.

The whole at first, then each change as it is told, and the whole again a second after a change (a write that was
refused is told too) and every minute. Owns the mirror and how an entry is changed; the records are ``pools``, what
follows from them is decided by the reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_broker.pools import pool as pools
from sie_broker.pools.pool import Assignment, Pool
from sie_sdk.errors import QueueUnavailableError

T = TypeVar("T")

log = logging.getLogger("sie.broker.pools")

REREAD_S = 60.0
SOON_S = 1.0
"""After what was told, and after a read that failed."""


class PoolTable:
    """What ``bucket`` last told: ``pools`` and ``queues`` (`Pool.shape`) by name, ``assigned`` by worker, ``homes``."""

    def __init__(self, bucket: Bucket) -> None:
        self.pools: dict[str, Pool] = {}
        self.queues: dict[str, str] = {}
        self.assigned: dict[str, Assignment] = {}
        self.homes: dict[str, bool] = {}
        """The pools of the catalogue beside the default one."""
        self._bucket = bucket

    def ready(self, pool: Pool) -> bool:
        """Whether the pool's queues exist."""
        return self.queues.get(pool.name) == pool.shape

    async def follow(self, changed: Callable[[], None] = lambda: None) -> None:
        """Keep the table up to date until cancelled; ``changed()`` is called after each change."""
        tables = (self.pools, self.queues, self.assigned, self.homes)
        told: dict[str, bytes | None] = {}
        news = asyncio.Event()

        def on_change(key: str, value: bytes | None) -> None:
            told[key] = value
            self.apply(key, value)
            news.set()
            changed()

        async with self._bucket.watch(on_change):
            while not cancelled():
                told.clear()
                news.clear()
                before = [{**table} for table in tables]
                read = await self.read()
                for key, value in told.items():  # told while the whole was read, and perhaps newer than it
                    self.apply(key, value)
                if before != [*tables]:
                    changed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REREAD_S if read else SOON_S):
                        await news.wait()
                        await asyncio.sleep(SOON_S)

    async def look_up(self, name: str) -> Pool | None:
        """The pool of that name, asked of the bucket itself: another process may have made it just now.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        for key in (pools.pool_key(name), pools.queues_key(name)):
            self.apply(key, await self._bucket.get(key))
        return self.pools.get(name)

    async def look_all_up(self) -> None:
        """All pools, likewise."""
        for key, value in (await self._bucket.entries(pools.POOL)).items():
            self.apply(key, value)

    async def change(self, name: str, decide: Callable[[Pool | None], Pool | None]) -> Pool | None:
        """Make of a pool what ``decide`` makes of it as it stands (None: there is none), whoever else writes meanwhile.

        Raises:
            QueueUnavailableError: the broker does not answer. And what ``decide`` raises.
        """
        key = pools.pool_key(name)
        while True:
            entry = await self._bucket.read(key)
            self.apply(key, entry.value)
            before = self.pools.get(name)
            after = decide(before)
            if after == before:
                return after
            if after is None:
                done = await self._bucket.remove(key, entry.revision)
            else:
                done = await self._bucket.replace(key, pools.encode(after), entry.revision) is not None
            if done:
                self.apply(key, None if after is None else pools.encode(after))
                return after

    async def note_queues(self, name: str, shape: str | None) -> None:
        """Tell everybody for which shape the pool's queues exist; None: for none.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        await self._put(pools.queues_key(name), None if shape is None else shape.encode())

    async def assign(self, worker: str, assignment: Assignment | None) -> None:
        """Tell a worker whom it works for; None: the pool it was started in. Errors as `note_queues`."""
        await self._put(pools.worker_key(worker), None if assignment is None else pools.encode(assignment))

    async def _put(self, key: str, value: bytes | None) -> None:
        if value is None:
            await self._bucket.delete(key)
        else:
            await self._bucket.put(key, value)
        self.apply(key, value)

    async def note_home(self, name: str, *, gone: bool = False) -> None:
        """Tell everybody that the catalogue has models in a pool of that name, or no more. Errors as `note_queues`."""
        await self._put(pools.home_key(name), None if gone else b"")

    async def read(self) -> bool:
        """Take in the whole bucket; False when it does not answer, and what was known stays."""
        try:
            entries = await self._bucket.entries()
        except QueueUnavailableError as error:
            log.warning("the pools were not read, those last known stay: %s", error)
            return False
        for table in (self.pools, self.queues, self.assigned, self.homes):
            table.clear()
        for key, value in entries.items():
            self.apply(key, value)
        return True

    def apply(self, key: str, value: bytes | None) -> None:
        """Take in one entry; None: it is gone. What cannot be read is left out with a warning."""
        try:
            if (name := pools.named(key, pools.POOL)) is not None:
                _set(self.pools, name, None if value is None else pools.read_pool(value))
            elif (name := pools.named(key, pools.QUEUES)) is not None:
                _set(self.queues, name, None if value is None else value.decode())
            elif (name := pools.named(key, pools.WORKER)) is not None:
                _set(self.assigned, name, None if value is None else pools.read_assignment(value))
            elif (name := pools.named(key, pools.HOME)) is not None:
                _set(self.homes, name, None if value is None else True)
        except ValueError as error:
            log.warning("skipped %s: %s", key, error)


def _set(table: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
