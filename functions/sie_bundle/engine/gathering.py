"""Gathering: how long a stream that has just answered callers waits for them to ask again, before its next pass.

Callers who ask again as soon as they have their answer come back one after the other, within milliseconds. A stream
that takes the first of them alone pays three times for it while the others wait; and of two streams the one that takes
whatever is there gets more and more, and the other less. So each waits for its share, a moment at most. Callers who
come when they please gain nothing by it, and so must not wait for others: `CROWD` tells them apart. Measured with
Poisson arrivals at up to four fifths of what two cores can do, they are answered as fast as without it.

Owns for how many and how long, which are pure, and the waiting itself. Not here: what goes together (``batch``).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

PATIENCE, LONGEST_S = 0.3, 0.02
"""Of the seconds that the pass before took, what is waited at most; and never longer than this."""
CROWD = 4
"""So many times as many as wait already must have been answered: else it would be those who wait that pay."""


def patience_s(took_s: float) -> float:
    """Seconds to wait at most after a pass that took so many."""
    return min(PATIENCE * took_s, LONGEST_S)


def awaited(answered: int, running: int, queued: int, streams: int) -> int:
    """The requests in the queue to wait for: a stream's share, if all who were answered come back; 0: none.

    Args:
        answered: by the pass that has just ended.
        running: in the passes of the other streams.
        queued: that are there already.
        streams: of the device.
    """
    share = -(-(answered + running + queued) // streams)
    return share if share > max(1, queued) and answered > CROWD * queued else 0


@dataclass(eq=False)
class _Waiting:
    """A stream that waits until so many requests are in the queue, and is told once."""

    expected: int
    condition: threading.Condition
    told: bool = False


class Gathering:
    """The streams that wait. Every call is made with the queue's ``lock`` held."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: list[_Waiting] = []
        self._closed = False

    @property
    def streams(self) -> int:
        """How many of them there are."""
        return len(self._waiting)

    def wait(self, expected: int, seconds: float) -> None:
        """Wait until so many requests are in the queue, so long at most; the lock is let go meanwhile."""
        if self._closed:
            return
        own = _Waiting(expected, threading.Condition(self._lock))
        self._waiting.append(own)
        own.condition.wait(seconds)
        self._waiting.remove(own)

    def tell(self, queued: int) -> None:
        """Wake streams whose number has come, each once: one that is woken for less asks for Python's lock in vain."""
        for one in self._waiting:
            if not one.told and (self._closed or one.expected <= queued):
                one.told = True
                one.condition.notify()

    def close(self) -> None:
        """Wake all of them, and let nobody wait any more."""
        self._closed = True
        self.tell(0)
