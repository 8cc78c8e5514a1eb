"""Keeping a pool alive in the background: a thread for the blocking client, a task for the awaiting one.

Owns when a lease is renewed, what follows a renewal that fails, and a clean end. Imported when a client makes its first
pool: asyncio would cost every import of the SDK. What is sent stands in ``pool_calls``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Self

from sie_sdk import pool_calls
from sie_sdk.effects import Call, Patience
from sie_sdk.errors import ConfigurationError, SIEError
from sie_sdk.pools import PoolInfo, PoolSpec

if TYPE_CHECKING:
    from sie_sdk.client import SIEAsyncClient, SIEClient

log = logging.getLogger("sie.sdk.leases")

LONGEST_S = 10.0
"""The most a renewal, or the pause after one that failed, may take: how long the end of a lease may have to wait."""
SHORTEST_S = 0.5


def pause_s(ttl_s: float, failures: int) -> float:
    """Seconds to the next renewal: a third of the lease, and less while they fail (``failures`` in a row)."""
    usual = ttl_s / 3
    return min(usual, LONGEST_S, SHORTEST_S * 2.0 ** min(failures - 1, 10)) if failures else usual


def renewal(spec: PoolSpec, patience: Patience) -> Call[None]:
    """Renew the pool; make it again when it has ended meanwhile."""
    if not (yield from pool_calls.renew(spec.name, patience)):
        log.warning("pool %s had ended and is made again", spec.name)
        yield from pool_calls.create(spec, patience)


class _Lease:
    """What both kinds have: the pool and how its renewals went. ``name`` goes into ``pool=`` of a call."""

    def __init__(self, spec: PoolSpec, timeout_s: float) -> None:
        self.name = spec.name
        self._spec = spec
        self._failures = 0
        self._pid = os.getpid()
        short_s = min(timeout_s, LONGEST_S)
        self._patience = Patience(wait_for_capacity=False, deadline_s=short_s, timeout_s=short_s)

    def _pause_s(self) -> float:
        return pause_s(self._spec.ttl_seconds, self._failures)

    def _renewed(self, error: SIEError | None) -> None:
        """Take in how a renewal went; the lease lasts for two thirds of its time without one."""
        if error is not None and not self._failures:
            log.warning("pool %s was not renewed, trying again: %s", self.name, error)
        elif error is None and self._failures:
            log.info("pool %s is renewed again", self.name)
        self._failures = 0 if error is None else self._failures + 1

    def _not_deleted(self, error: SIEError) -> None:
        log.warning("pool %s was not deleted and ends in %g s: %s", self.name, self._spec.ttl_seconds, error)


class PoolLease(_Lease):
    """A pool that lives while its ``with`` block does; threads may use it meanwhile."""

    def __init__(self, client: SIEClient, spec: PoolSpec, timeout_s: float) -> None:
        super().__init__(spec, timeout_s)
        self._client = client
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def info(self) -> PoolInfo | None:
        """The pool as it is now."""
        return self._client.get_pool(self.name)

    def stop(self) -> None:
        """Renew it no more; it ends when its lease does."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self._client._run(pool_calls.create(self._spec, self._client._impatience()))
        self._client._leases.add(self)
        self._ending.clear()
        self._thread = threading.Thread(target=self._keep, name=f"sie-pool-{self.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has no thread of its own, and the pool is its parent's
        self.stop()
        self._client._leases.discard(self)
        try:
            self._client._run(pool_calls.delete(self.name, self._patience))
        except SIEError as error:  # what the block raised counts, not this
            self._not_deleted(error)

    def _keep(self) -> None:
        while not self._ending.wait(self._pause_s()):
            try:
                self._client._run(renewal(self._spec, self._patience))
            except ConfigurationError:
                return  # the client is closed
            except SIEError as error:
                self._renewed(error)
            else:
                self._renewed(None)


class AsyncPoolLease(_Lease):
    """A pool that lives while its ``async with`` block does."""

    def __init__(self, client: SIEAsyncClient, spec: PoolSpec, timeout_s: float) -> None:
        super().__init__(spec, timeout_s)
        self._client = client
        self._task: asyncio.Task[None] | None = None

    async def info(self) -> PoolInfo | None:
        """The pool as it is now."""
        return await self._client.get_pool(self.name)

    async def stop(self) -> None:
        """Renew it no more; it ends when its lease does."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self._client._run(pool_calls.create(self._spec, self._client._impatience()))
        self._client._leases.add(self)
        self._task = asyncio.create_task(self._keep(), name=f"sie-pool-{self.name}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()
        self._client._leases.discard(self)
        try:
            await self._client._run(pool_calls.delete(self.name, self._patience))
        except SIEError as error:  # what the block raised counts, not this
            self._not_deleted(error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s())
            try:
                await self._client._run(renewal(self._spec, self._patience))
            except ConfigurationError:
                return  # the client is closed
            except SIEError as error:
                self._renewed(error)
            else:
                self._renewed(None)
