"""Tells the workers of a lane of work for a model that none of them has loaded: perhaps none pulls its queue.

Owns whom that is done for and how often. What workers have loaded is known to ``lanes``; they look for themselves every
second, so a notice that is lost, or left out wrongly, makes an answer late by that much.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sie_broker.contract import Broker
from sie_broker.records import Queue
from sie_ingress.lanes import Lanes

AGAIN_S = 1.0
"""How long a notice is as good as another: who heard it pulls that queue for a minute."""
KNOWN = 4096


class Notices:
    """``clock``: seconds, steady."""

    def __init__(self, broker: Broker, lanes: Lanes, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._lanes = lanes
        self._clock = clock
        self._told: dict[Queue, float] = {}

    def of(self, queue: Queue) -> None:
        """Work is submitted to it now."""
        if self._lanes.holds(queue.lane, queue.model):
            return
        now = self._clock()
        if now - self._told.get(queue, -AGAIN_S) >= AGAIN_S:
            if len(self._told) >= KNOWN:
                self._told.clear()
            self._told[queue] = now
            self._broker.want(queue)
