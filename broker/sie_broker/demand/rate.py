"""How much one pod of a lane does: learned from what its workers say of themselves, pure.

A worker that had as much as it could take shows what it can do; one that had less shows only that it can do that much.
So windows of saturated work move the rate up and down, others only up. Time is the workers' own: seconds with work in
hand. Owns the windows and the smoothing; what follows from the rate is in ``demand``.
"""

from __future__ import annotations

import msgspec

from sie_broker.pools.pool import service_of
from sie_broker.records import Lane, WorkerState

ENOUGH_WORKS, ENOUGH_S = 20, 5.0
"""A window ends with both of these, so that what was begun before it and finished in it hardly counts; or"""
LONG_S = 60.0
"""after this, where works take long."""
SATURATED = 0.75
"""The share of a window that a worker's hands must have been full."""
SMOOTHING = 0.2
"""What a new window counts for, once there were as many as this stands for; before that all count the same."""


class Window(msgspec.Struct, frozen=True):
    """What one worker did: works answered, seconds with work in hand, and of these those with its hands full."""

    works: int = 0
    busy_s: float = 0.0
    full_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether there is enough in it to learn from."""
        return (self.works >= ENOUGH_WORKS and self.busy_s >= ENOUGH_S) or self.busy_s >= LONG_S

    @property
    def saturated(self) -> bool:
        """Whether the worker had as much as it could take."""
        return self.full_s >= SATURATED * self.busy_s


class Rate(msgspec.Struct, frozen=True):
    """Works that one pod clears in a second. ``windows`` 0: set, not measured."""

    works_per_s: float
    windows: int = 0


def learned(before: Rate, window: Window) -> Rate:
    """The rate after one more window.

    A window without a finished work teaches nothing: the worker waited for something else, its weights for instance.
    """
    if not window.works:
        return before
    seen = window.works / window.busy_s
    if not window.saturated and seen <= before.works_per_s:
        return before
    weight = max(SMOOTHING, 1 / (before.windows + 1))
    return Rate(before.works_per_s + weight * (seen - before.works_per_s), before.windows + 1)


def between(before: WorkerState, after: WorkerState) -> Window | None:
    """What a worker did between two of its heartbeats; None where it did not only work.

    A model that came or went took time in which others waited, and in another pool it does other work.
    """
    if after.state != "ready" or (before.models, before.lane) != (after.models, after.lane):
        return None
    return Window(
        works=max(0, after.completed - before.completed),
        busy_s=max(0.0, after.busy_s - before.busy_s),
        full_s=max(0.0, after.full_s - before.full_s),
    )


class Rates:
    """The rate of each lane. ``unknown``: works a second of one pod, until something was measured."""

    def __init__(self, unknown: float) -> None:
        self._unknown = Rate(unknown)
        self._rates: dict[Lane, Rate] = {}
        self._heard: dict[str, WorkerState] = {}
        self._windows: dict[str, Window] = {}

    def of(self, lane: Lane) -> Rate:
        """What is known of the lane; of the lane its workers come from, where nothing is known of its own."""
        return self._rates.get(lane) or self._rates.get(service_of(lane)) or self._unknown

    def recall(self, lane: Lane, works_per_s: float) -> None:
        """What somebody before us has measured; counts as one window."""
        self._rates.setdefault(lane, Rate(works_per_s, 1))

    def heard(self, state: WorkerState) -> None:
        """Take in one heartbeat."""
        before = self._heard.get(state.worker)
        self._heard[state.worker] = state
        if before is None:
            return
        if (more := between(before, state)) is None:
            self._windows.pop(state.worker, None)
            return
        window = self._windows.get(state.worker, Window())
        window = Window(window.works + more.works, window.busy_s + more.busy_s, window.full_s + more.full_s)
        if window.done:
            self._rates[state.lane] = learned(self.of(state.lane), window)
            window = Window()
        self._windows[state.worker] = window

    def forget(self, worker: str) -> None:
        """The worker is gone."""
        self._heard.pop(worker, None)
        self._windows.pop(worker, None)

    def gone(self, lane: Lane) -> None:
        """The lane's pool is no more."""
        self._rates.pop(lane, None)
