"""Pacing: a thread that works beside a busy device rests after each step, so that it takes a small share of a core.

A low priority alone does not do it: a forward pass is many short steps of all cores, each waits for the slowest, and
the system lets a thread that is at work finish its slice before it gives the core back. Owns when to rest and how long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

SHARE = 0.08
"""Of one core, while the device is busy."""

STEP_S = 0.002
"""What is shorter is not worth a rest of its own."""

BUSY_S = 0.3
"""A device is busy if it has finished a forward pass so shortly before."""


class Pace:
    """One thread's work beside a device.

    Args:
        progress: how many forward passes the device has finished.
        worked: seconds this thread has worked so far.
        now: seconds.
        sleep: rests for so many seconds.
    """

    def __init__(
        self,
        progress: Callable[[], int],
        worked: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._progress = progress
        self._worked = worked
        self._now = now
        self._sleep = sleep
        self._rested_at = worked()
        self._seen = progress()
        self._seen_at = float("-inf")

    def rest(self) -> None:
        """Rest for what was worked since the last rest, if the device is busy; call it after each step."""
        seen, now = self._progress(), self._now()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        worked = self._worked() - self._rested_at
        if worked < STEP_S:
            return
        if now - self._seen_at < BUSY_S:
            self._sleep(worked * (1 / SHARE - 1))
        self._rested_at = self._worked()


class Paced(Mapping[str, Tensor]):
    """Another mapping's tensors; whoever takes one rests first for what was done with those before."""

    def __init__(self, tensors: Mapping[str, Tensor], pace: Pace) -> None:
        self._tensors = tensors
        self._pace = pace

    def __getitem__(self, name: str) -> Tensor:
        self._pace.rest()
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # the usual one would take it, and rest

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
