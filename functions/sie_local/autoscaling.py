"""The rule of Knative's autoscaler that matters here, pure: how many processes a service should have.

Average concurrency over a window against a target, up at once, down one at a time, to zero after a grace. The clock is
passed in. Who starts and stops processes is in ``scaler``. Knative's own constants: reference ``knative-nats`` 1.1.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """Knative's knobs. Window and grace are short here: the quiet minute belongs to the demand holder."""

    target: float = 2.0
    max_scale: int = 4
    window_s: float = 2.0
    grace_s: float = 1.0
    request_timeout_s: float = 600.0


class Concurrency:
    """How many requests were open, when: told of each change, asked for the average over a window."""

    def __init__(self) -> None:
        self.open = 0
        self._changes: deque[tuple[float, int]] = deque()  # (since, open), oldest first

    def change(self, by: int, now: float) -> None:
        """One more or one less is open since ``now``."""
        self.open += by
        self._changes.append((now, self.open))

    def idle_s(self, now: float) -> float:
        """For how long nothing has been open; 0 while something is."""
        if self.open:
            return 0.0
        return now - self._changes[-1][0] if self._changes else math.inf

    def average(self, now: float, window_s: float) -> float:
        """The time-weighted average over the last ``window_s`` seconds, or since the first request if that is later.

        Rounded as Knative does, so that an average of 2.0000001 does not ask for a process more.
        """
        start = now - window_s
        while len(self._changes) > 1 and self._changes[1][0] <= start:
            self._changes.popleft()
        if not self._changes:
            return 0.0
        ends = [*(since for since, _ in self._changes), now][1:]
        weighted = sum(
            max(0.0, end - max(since, start)) * count for (since, count), end in zip(self._changes, ends, strict=True)
        )
        span = now - max(start, self._changes[0][0])
        return round(weighted / span, 6) if span > 0 else float(self.open)


def desired(processes: int, average: float, idle_s: float, policy: Policy) -> int:
    """How many processes a service that has ``processes`` should have now.

    Args:
        average: open requests over the window, see `Concurrency.average`.
        idle_s: for how long nothing has been open; 0 while something is.
    """
    wanted = min(policy.max_scale, math.ceil(average / policy.target))
    if idle_s == 0:
        wanted = max(wanted, 1)  # the first request does not wait for an average
    elif idle_s < policy.window_s + policy.grace_s:
        wanted = max(wanted, min(processes, 1))  # the last process stays through the grace
    return max(wanted, processes - 1)
