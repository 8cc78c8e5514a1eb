"""Pressure: how much too much of a device's memory is in use, once what was freed has been returned to it.

Owns when that is returned: torch and the C library both keep what is freed, and a pass that wants it again gets it
slowly. Not here: how memory is read and returned (``memory``), who is let go for it (``residency``). For any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from sie_bundle.residency import memory
from sie_bundle.residency.memory import Memory

FREE_S = 10.0
"""How often, while more of it is in use than should be, what is kept of freed memory is returned."""


class Pressure:
    """On the memory of one device.

    Args:
        device: as torch names it.
        percent: more than this part of its memory in use is too much.
        reading: its memory, now.
        gone: how many models were let go so far.
        clock: seconds.
    """

    def __init__(
        self,
        device: str,
        percent: float,
        reading: Callable[[], Memory],
        gone: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._percent = percent
        self._reading = reading
        self._gone = gone
        self._clock = clock
        self.last = Memory(0, 0)
        """As it was last read."""
        self._eased = float("-inf")
        """When what is kept was last returned because memory was short."""
        self._returned = 0
        """How many had been let go when freed memory was last returned to the system."""

    def read(self) -> Memory:
        """The memory, now."""
        self.last = self._reading()
        return self.last

    def free(self) -> None:
        """Return what is kept of freed memory to the device."""
        self._returned = self._gone()
        memory.give_back(self._device)

    def over(self, need: int = 0) -> int:
        """So many bytes too many would be in use, if ``need`` more were.

        Where that is any, what was let go is returned to the system first.
        """
        over = self.read().over(self._percent) + need
        if over > 0 and self._returned < self._gone():
            self.free()
            over = self.read().over(self._percent) + need
        return over

    def over_without_kept(self) -> int:
        """As `over`, where what is kept of freed memory may be all there is too much: that goes first."""
        if (now := self._clock()) - self._eased < FREE_S:
            return 1
        self._eased = now
        self.free()
        return self.over()
