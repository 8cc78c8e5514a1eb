"""Wakes the config service where it rests at zero: pools wait for it, and on Knative only a request starts it.

Owns when that is so: queues that a pool lacks, or still has after its lease. What is done then is the config service's.
Reads and requests never need it; writes go to it, and so wake it by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx

from sie_broker import clock
from sie_broker.ending import cancelled
from sie_broker.pools.pool_table import PoolTable

log = logging.getLogger("sie.ingress.config")

LOOK_S = 0.25
"""How often the pools are looked at. What lasts for two looks is not just being done."""
ANSWER_S = 60.0
"""How long it may take to start; a proxy holds the request until then."""
AGAIN_S = 2.0
"""The pause between two attempts."""


def waits(table: PoolTable, now: float) -> frozenset[str]:
    """The pools that the config service has something to do for, as far as ``table`` knows."""
    unready = {pool.name for pool in table.pools.values() if pool.living(now) and not table.ready(pool)}
    over = {name for name in table.queues if name not in table.pools or not table.pools[name].living(now)}
    return frozenset(unready | over)


class ConfigWake:
    """Looks at ``table`` and asks for ``url``, where anything waits. ``clock``: seconds since the epoch."""

    def __init__(self, table: PoolTable, url: str, clock: Callable[[], float] = clock.now) -> None:
        self._table = table
        self._url = url.rstrip("/") + "/readyz"
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        before: frozenset[str] = frozenset()
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as http:
            while not cancelled():
                now = waits(self._table, self._clock())
                if lasting := before & now:
                    log.info("waking the config service for %s", ", ".join(sorted(lasting)))
                    await self._ask(http)
                before = now
                await asyncio.sleep(LOOK_S)

    async def _ask(self, http: httpx.AsyncClient) -> None:
        try:
            await http.get(self._url)
        except httpx.HTTPError as error:
            log.warning("the config service is not reached: %s", error or type(error).__name__)
        await asyncio.sleep(AGAIN_S)
