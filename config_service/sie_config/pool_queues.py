"""The queues of pools: made when a pool is, closed when its lease has ended, removed once nothing waits in them.

No work is accepted for a pool before its queues exist: that they do is noted beside its record. Owns their life and the
end of the record; who makes a pool is the ingress, who serves it is decided by ``sie_broker.pools.assigner``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from sie_broker import clock
from sie_broker.contract import Broker
from sie_broker.ending import cancelled, end
from sie_broker.pools.pool import DEFAULT, Pool, service_of
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.config.pools")

LOOK_S = 1.0
"""How often ended leases and the last of their work are looked for, while there is any pool."""


class PoolQueues:
    """Keeps the queues of the pools in ``table`` for the models of ``registry``. ``clock``: seconds since the epoch."""

    def __init__(
        self, broker: Broker, registry: Registry, table: PoolTable, clock: Callable[[], float] = clock.now
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._table = table
        self._clock = clock

    def living(self) -> Iterator[tuple[Lane, str]]:
        """The queues of all living pools."""
        for pool in self._table.pools.values():
            if pool.living(self._clock()):
                yield from self._of(pool)

    def beside(self, lane: Lane) -> Iterator[Lane]:
        """The lanes of living pools that use what serves this one."""
        for pool in self._table.pools.values():
            if pool.living(self._clock()):
                yield from (own for own in pool.lanes() if service_of(own) == lane)

    async def run(self) -> None:
        """Keep them until cancelled."""
        news = asyncio.Event()
        following = asyncio.create_task(self._table.follow(news.set))
        try:
            while not cancelled():
                news.clear()
                for name in sorted(self._table.pools.keys() | self._table.queues.keys()):
                    try:
                        await self._settle(name)
                    except SIEError as error:  # its caller is told "pending"; the other pools are served
                        log.warning("pool %s: %s", name, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if self._table.pools or self._table.queues else None):
                        await news.wait()
        finally:
            await end(following)

    async def note_homes(self, coming: Sequence[ModelSpec] = ()) -> None:
        """Say which pools are the catalogue's own, with that of the models to come: these scale by themselves.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        homes = {spec.pool for spec in (*self._registry.specs(), *coming)} - {DEFAULT}
        for name in sorted(homes - self._table.homes.keys()):
            await self._table.note_home(name)
        for name in sorted(self._table.homes.keys() - homes):
            await self._table.note_home(name, gone=True)

    async def _settle(self, name: str) -> None:
        pool = self._table.pools.get(name)
        if pool is None or not pool.living(self._clock()):
            await self._retire(name)
        elif not self._table.ready(pool):
            await self._broker.provision(self._of(pool))
            await self._table.note_queues(name, pool.shape)
            log.info("pool %s has its queues", name)

    async def _retire(self, name: str) -> None:
        """One step towards the end of a pool that does not live, as the bucket itself says."""
        pool = await self._table.look_up(name)
        if pool is not None and pool.living(self._clock()):
            return
        if name in self._table.queues:
            log.info("pool %s takes no more work", name)
            await self._table.note_queues(name, None)
        # A pool of the catalogue is not ours to close, whatever stands in the bucket.
        kept = {DEFAULT, *(spec.pool for spec in self._registry.specs())}
        if name in kept or await self._broker.retire(name):
            after = await self._table.change(
                name, lambda pool: pool if pool is not None and pool.living(self._clock()) else None
            )
            if after is None:
                log.info("pool %s is gone", name)

    def _of(self, pool: Pool) -> Iterator[tuple[Lane, str]]:
        lanes = {service_of(lane): lane for lane in pool.lanes()}
        return ((lanes[lane], model) for lane, model in self._registry.queues() if lane in lanes)
