"""Whom this worker works for: what the assigner writes under its name, as it is told and once a minute as it stands.

Owns the following and nothing else: what a move means is for ``bundle``, who decides it is the assigner of
``sie_broker.pools``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_broker.pools import pool as pools
from sie_broker.pools.pool import Assignment
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.bundle.membership")

REREAD_S = 60.0
RETRY_S = 1.0

Told = Callable[[Assignment | None], None]


class Membership:
    """Calls ``told`` when the assignment of ``worker`` changes; None: it works for the pool it was started in."""

    def __init__(self, bucket: Bucket, worker: str, told: Told) -> None:
        self._bucket = bucket
        self._key = pools.worker_key(worker)
        self._told = told
        self._current: Assignment | None = None
        self._heard = 0

    async def follow(self) -> None:
        """Follow until cancelled."""
        async with self._bucket.watch(self._on_change, self._key):
            while not cancelled():
                read = await self._read()
                await asyncio.sleep(REREAD_S if read else RETRY_S)

    async def _read(self) -> bool:
        heard = self._heard
        try:
            value = await self._bucket.get(self._key)
        except QueueUnavailableError as error:
            log.warning("the assignment was not read, the last one stands: %s", error)
            return False
        if heard == self._heard:  # else what was told meanwhile is newer
            self._take(value)
        return True

    def _on_change(self, _key: str, value: bytes | None) -> None:
        self._heard += 1
        self._take(value)

    def _take(self, value: bytes | None) -> None:
        try:
            assignment = None if value is None else pools.read_assignment(value)
        except ValueError as fault:
            log.warning("an assignment cannot be read, the last one stands: %s", fault)
            return
        if assignment != self._current:
            self._current = assignment
            self._told(assignment)
