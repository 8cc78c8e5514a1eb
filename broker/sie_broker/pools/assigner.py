"""The assigner: looks at the pools and the workers, and tells each worker whom it works for.

Owns the loop. The rule is in ``assignment``, the records are in ``pools``. One at a time, beside the demand holder: two
would not lose work, but undo each other's choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

from sie_broker import clock
from sie_broker.contract import Broker
from sie_broker.ending import cancelled
from sie_broker.pools.assignment import Member, assign
from sie_broker.pools.pool import DEFAULT, Assignment, service_of
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_broker.workers import Workers
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.broker.assigner")

FORGOTTEN_S = 30.0
"""A worker that is silent for this long will not be back under its name; until then its assignment stays as it is."""
LOOK_S = 0.5


class Assigner:
    """Assigns the workers in ``broker``'s presence to the pools of ``table``.

    Args:
        pods: workers that each lane's demand asks for, now.
        working: the lanes that have work, now.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        broker: Broker,
        table: PoolTable,
        pods: Callable[[], Mapping[Lane, int]],
        working: Callable[[], Collection[Lane]],
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._broker = broker
        self._table = table
        self._pods = pods
        self._working = working
        self._look_s = look_s
        self._clock = clock
        self._workers = Workers(clock)
        self._heard_at: dict[str, float] = {}
        self._news = asyncio.Event()
        self._since = clock()

    def look(self) -> None:
        """Something changed: look at once."""
        self._news.set()

    async def run(self) -> None:
        """Assign until cancelled."""
        async with self._broker.presence.watch(self._heard):
            await self._read_presence()
            while not cancelled():
                self._news.clear()
                try:
                    await self._settle()
                except QueueUnavailableError as error:
                    log.warning("assignments wait for the broker: %s", error)
                await self._pause()

    async def _pause(self) -> None:
        """Until the next look; without any pool nothing changes by itself."""
        busy = bool(self._table.pools or self._table.assigned)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._look_s if busy else None):
                await self._news.wait()

    async def _read_presence(self) -> None:
        try:
            await self._workers.read(self._broker.presence)
        except QueueUnavailableError as error:
            log.warning("presence was not read, heartbeats will tell: %s", error)

    async def _settle(self) -> None:
        """Make the assignments what they should be."""
        pools, now = {**self._table.pools}, self._clock()
        members = self._members()
        wanted = assign(pools.values(), self._pods(), self._working(), members.values(), now)
        for worker in wanted.keys() | self._table.assigned.keys():
            told = self._table.assigned.get(worker)
            if worker not in members:
                if self._silent(worker, now):
                    await self._table.assign(worker, None)
                continue
            pool = pools[wanted[worker]] if worker in wanted else None
            assignment = None if pool is None else Assignment(pool.name, pool.pinned_models)
            if told != assignment:
                log.info("%s works for %s", worker, DEFAULT if pool is None else pool.name)
                await self._table.assign(worker, assignment)

    def _members(self) -> dict[str, Member]:
        """Those who may be given to a pool, as the rule sees them: whom they work for is what they were told last."""
        found = {}
        for state in self._workers.all():
            if state.home == DEFAULT and state.state != "draining":
                name, told = state.worker, self._table.assigned.get(state.worker)
                found[name] = Member(name, service_of(state.lane), told.pool if told else DEFAULT, state.in_flight == 0)
        return found

    def _silent(self, worker: str, now: float) -> bool:
        return now - self._heard_at.get(worker, self._since) > FORGOTTEN_S

    def _heard(self, worker: str, value: bytes | None) -> None:
        now = self._clock()
        self._workers.heard(worker, value)
        if worker not in self._heard_at:
            self._heard_at = {name: at for name, at in self._heard_at.items() if now - at < FORGOTTEN_S}
            self._news.set()  # somebody new is worth a look at once
        self._heard_at[worker] = now
