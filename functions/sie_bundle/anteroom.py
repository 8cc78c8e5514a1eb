"""The anteroom: places in hand for work whose model is not loaded, or not as it is wanted, apart from the other places.

Work that waits for a load would fill a worker's hands, and what could be computed meanwhile would wait with it. Owns
who gets how many of these places; what a place is, is ``sie_broker.room``'s.
"""

from __future__ import annotations

from collections.abc import Callable

from sie_broker.room import Occupancy, Room


class Anteroom:
    """So many places, shared out by halves: each model gets half of what is left, and one at the least.

    The first may take a minute to load, and the next a second.
    """

    def __init__(self, places: int) -> None:
        self._left = places

    def give(self) -> int:
        """Places for one more."""
        share = max(1, self._left // 2)
        self._left -= share
        return share

    def take_back(self, share: int) -> None:
        """They are not needed any more."""
        self._left += share


class Places:
    """What one pull takes (`contract.Room`): of the room while its model is ``ready``, and else of the anteroom.

    A share of the anteroom is the pull's from when it begins until the model is loaded or it ends, whatever comes.
    """

    def __init__(self, room: Room, anteroom: Anteroom, ready: Callable[[], bool]) -> None:
        self._room = room
        self._anteroom = anteroom
        self._ready = ready
        self._share = 0
        self._own: Room | None = None
        self._reserved_in = room

    @property
    def now(self) -> Room:
        """Where what comes now is to have its place."""
        if self._ready():
            self.close()
            return self._room
        if self._own is None:
            self._share = self._anteroom.give()
            self._own = Room(self._share, Occupancy())
        return self._own

    @property
    def free(self) -> int:
        return self.now.free

    async def wait(self) -> None:
        while not (room := self.now).free:
            await room.wait()

    async def reserve(self, most: int) -> int:
        self._reserved_in = self.now
        return await self._reserved_in.reserve(most)

    def release(self, count: int) -> None:
        self._reserved_in.release(count)

    def close(self) -> None:
        """Take nothing more; what has its place there keeps it."""
        if self._own is not None:
            self._own = None
            self._anteroom.take_back(self._share)
