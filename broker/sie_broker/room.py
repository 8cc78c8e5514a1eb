"""Room: how much is taken in hand at once; a worker's is shared by the pulls of all its models."""

from __future__ import annotations

import asyncio


class Room:
    """``capacity`` places. One event loop only."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = asyncio.Event()
        self._changed.set()
        self.taken = 0

    @property
    def free(self) -> int:
        """Places left; never below zero, though several pulls may together bring more than there was room for."""
        return max(0, self._capacity - self.taken)

    async def wait(self) -> None:
        """Return when there is a free place."""
        await self._changed.wait()

    def take(self) -> None:
        """Fill a place."""
        self.taken += 1
        if not self.free:
            self._changed.clear()

    def leave(self) -> None:
        """Empty one."""
        self.taken -= 1
        if self.free:
            self._changed.set()
