"""How much is computed a second, by what workers say they have answered. Pure: no clock of its own.

Owns the window. Counted are works as workers answer them, through whichever ingress they came: a large request is as
many as it has parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

WINDOW_S = 10.0
"""The rate is that of the last so many seconds."""


class Throughput:
    """Works answered a second."""

    def __init__(self) -> None:
        self._heard: dict[str, deque[tuple[float, int]]] = {}

    def heard(self, worker: str, at: float, completed: int) -> None:
        """A worker had answered ``completed`` works since its start, at ``at`` seconds since the epoch."""
        samples = self._heard.setdefault(worker, deque())
        if samples and (at <= samples[-1][0] or completed < samples[-1][1]):
            if at <= samples[-1][0]:
                return  # told twice, or late
            samples.clear()  # another of the same name
        samples.append((at, completed))
        while len(samples) > 2 and samples[1][0] <= at - WINDOW_S:
            samples.popleft()

    def per_second(self, workers: Iterable[str]) -> float:
        """The rate of these workers together; others are forgotten."""
        self._heard = {name: self._heard[name] for name in workers if name in self._heard}
        return sum(map(_rate, self._heard.values()))


def _rate(samples: deque[tuple[float, int]]) -> float:
    (began, before), (ended, after) = samples[0], samples[-1]
    return (after - before) / (ended - began) if ended > began else 0.0
