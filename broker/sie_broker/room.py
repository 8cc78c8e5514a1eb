"""Room: how much is taken in hand at once, and for how long; a worker's is shared by the pulls of all its models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Occupancy:
    """Adds up the time in which anybody at all was inside."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inside = 0
        self._since = 0.0
        self._total_s = 0.0

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._total_s + (self._clock() - self._since if self._inside else 0.0)

    def enter(self) -> None:
        """One more is inside."""
        if not self._inside:
            self._since = self._clock()
        self._inside += 1

    def leave(self) -> None:
        """One less."""
        self._inside -= 1
        if not self._inside:
            self._total_s += self._clock() - self._since


class Room:
    """``capacity`` places. One event loop only. ``full``: is entered while there is none left.

    Places are set aside for what the broker was asked for, so that many pulls together do not ask for more than there
    is room for.
    """

    def __init__(self, capacity: int, full: Occupancy | None = None) -> None:
        self._capacity = capacity
        self._full = full or Occupancy()
        self._changed = asyncio.Event()
        self._changed.set()
        self._unreserved = asyncio.Event()
        self._unreserved.set()
        self._reserved = 0
        self.taken = 0

    @property
    def free(self) -> int:
        """Places left; never below zero, though standing asks may bring more than there was room for."""
        return max(0, self._capacity - self.taken)

    async def wait(self) -> None:
        """Return when there is a free place."""
        await self._changed.wait()

    async def reserve(self, most: int) -> int:
        """Set places aside, once there is one: at most ``most``, and only half of the rest if others have set some."""
        while (left := self.free - self._reserved) <= 0:
            self._unreserved.clear()
            await self._unreserved.wait()
        count = min(most, (left + 1) // 2 if self._reserved else left)
        self._reserved += count
        return count

    def release(self, count: int) -> None:
        """Give back places that were set aside: what was asked for has come, or does not."""
        self._reserved -= count
        self._unreserved.set()

    def take(self) -> None:
        """Fill a place."""
        self.taken += 1
        if self.taken == self._capacity:
            self._changed.clear()
            self._full.enter()

    def leave(self) -> None:
        """Empty one."""
        self.taken -= 1
        self._unreserved.set()
        if self.taken == self._capacity - 1:
            self._changed.set()
            self._full.leave()
