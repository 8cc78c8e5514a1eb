"""The assigner: looks at the pools and the workers, and tells each worker whom it works for.

Owns the loop and the table of heartbeats. The rule is in ``assignment``, the records are in ``pools``. One at a time,
beside the demand holder: two would not lose work, but undo each other's choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from sie_broker.assignment import Member, assign
from sie_broker.connection import cancelled
from sie_broker.contract import Broker, Lane, WorkerState
from sie_broker.pool_table import PoolTable
from sie_broker.pools import DEFAULT, Assignment
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.broker.assigner")

STALE_S = 5.0
"""A worker that has not been heard of for this long is not counted on; it beats once a second."""
FORGOTTEN_S = 30.0
"""One that is silent for this long will not be back under its name; until then its assignment stays as it is."""
LOOK_S = 0.5

_states = msgspec.msgpack.Decoder(WorkerState)


class Assigner:
    """Assigns the workers in ``broker``'s presence to the pools of ``table``.

    Args:
        pods: workers that each lane's demand asks for, now.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        broker: Broker,
        table: PoolTable,
        pods: Callable[[], Mapping[Lane, int]],
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._broker = broker
        self._table = table
        self._pods = pods
        self._look_s = look_s
        self._clock = clock
        self._workers: dict[str, WorkerState] = {}
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
            for worker, value in (await self._broker.presence.entries()).items():
                self._heard(worker, value)
        except QueueUnavailableError as error:
            log.warning("presence was not read, heartbeats will tell: %s", error)

    async def _settle(self) -> None:
        """Make the assignments what they should be."""
        pools, now = self._table.pools, self._clock()
        members = self._members(now)
        wanted = assign(pools.values(), self._pods(), members.values(), now)
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

    def _members(self, now: float) -> dict[str, Member]:
        """Those who may be given to a pool, as the rule sees them: whom they work for is what they were told last."""
        found = {}
        for name, state in self._workers.items():
            if state.home == DEFAULT and state.state != "draining" and state.at >= now - STALE_S:
                told = self._table.assigned.get(name)
                service = msgspec.structs.replace(state.lane, pool=DEFAULT)
                found[name] = Member(name, service, told.pool if told else DEFAULT, state.in_flight == 0)
        return found

    def _silent(self, worker: str, now: float) -> bool:
        heard = self._workers[worker].at if worker in self._workers else self._since
        return now - max(heard, self._since) > FORGOTTEN_S

    def _heard(self, worker: str, value: bytes | None) -> None:
        if value is None:
            self._workers.pop(worker, None)
        else:
            try:
                state = _states.decode(value)
            except msgspec.DecodeError as fault:
                log.warning("heartbeat of %s cannot be read: %s", worker, fault)
                return
            known = self._workers.get(worker)
            if known is None:
                oldest = self._clock() - FORGOTTEN_S
                self._workers = {name: each for name, each in self._workers.items() if each.at > oldest}
            self._workers[worker] = state
            if known is not None and known.state == state.state:
                return
        if self._table.pools:
            self._news.set()
