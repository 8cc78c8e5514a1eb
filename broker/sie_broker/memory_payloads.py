"""The large payloads of the in-memory broker, in a dictionary; what one is stands in ``claim``."""

from __future__ import annotations

import math
import time

from sie_broker import claim, jobs
from sie_broker.contract import Store
from sie_sdk.errors import QueueFullError


def no_room(size: int, among: str, limit: int) -> QueueFullError:
    """The error of what is not kept, for there are ``limit`` bytes at most."""
    return QueueFullError(
        f"There is no room for {size} bytes among the {among} now.",
        limit=limit,
        retry_after=5.0,
        hint="Try again later, or send less at once.",
    )


class MemoryPayloads:
    """`Payloads` in a dictionary, at most ``max_bytes``. A queue here knows no age; ``lifetime_s`` is for tests."""

    def __init__(self, max_bytes: int = 2 << 30, lifetime_s: float | None = None) -> None:
        self.held: dict[str, tuple[float, bytes]] = {}
        """When each ends, on the steady clock, and what it is."""
        self._max_bytes = max_bytes
        self._lifetime_s = lifetime_s

    async def store(self, store: Store, owner: str, data: bytes) -> str:
        now = time.monotonic()
        self.held = {dataref: kept for dataref, kept in self.held.items() if now < kept[0]}
        if len(data) + sum(len(kept) for _, kept in self.held.values()) > self._max_bytes:
            raise no_room(len(data), "large payloads", self._max_bytes)
        lifetime_s = jobs.LIFETIME_S + claim.MARGIN_S if store == "result" else math.inf
        dataref = str(await claim.refer(store, owner, data))
        self.held[dataref] = now + (lifetime_s if self._lifetime_s is None else self._lifetime_s), data
        return dataref

    async def load(self, dataref: str) -> bytes:
        reference = claim.parse(dataref)
        until, data = self.held.get(dataref, (0.0, b""))
        if time.monotonic() >= until:
            raise claim.lost(reference, "is no longer stored")
        return await claim.verified(reference, data)

    async def drop(self, dataref: str) -> None:
        self.held.pop(dataref, None)
