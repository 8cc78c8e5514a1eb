"""The time of the deployment: seconds since the epoch, the same in every process, whatever their machines' clocks say.

Owns whose clock is believed. A machine's own is, while it is near the NATS server's, which everybody hears; one that is
off, or jumps, is replaced by the server's, carried on by a clock that neither jumps nor stops. What must only never run
backwards in one process needs none of this: that is `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.broker.clock")

NEAR_S = 0.5
"""How far a machine's clock may be off and still be used: those of one machine agree to the microsecond."""
ASK_EVERY_S = 60.0
ASK_AGAIN_S = 1.0


steady: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds that go on while the machine sleeps, where the system has such a clock."""


class Clock:
    """``wall``: the machine's clock, which somebody may set. ``steady``: one that nobody can."""

    def __init__(self, wall: Callable[[], float] = lambda: time.time(), steady: Callable[[], float] = steady) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead = wall() - steady()

    def now(self) -> float:
        """The time of the deployment."""
        wall, believed = self._wall(), self._steady() + self._ahead
        return wall if abs(wall - believed) <= NEAR_S else believed

    def heard(self, server: float, asked: float, answered: float) -> None:
        """Take in what the server's clock said between two readings of the steady one."""
        ahead, unsure = server - (asked + answered) / 2, (answered - asked) / 2
        if abs(self._wall() - self._steady() - ahead) <= NEAR_S + unsure:
            ahead = self._wall() - self._steady()
        elif abs(ahead - self._ahead) > NEAR_S + unsure:
            off = self._wall() - self._steady() - ahead
            log.warning("this machine's clock is %.1f s %s, the NATS server's is used", abs(off), _side(off))
        self._ahead = ahead

    async def follow(self, ask: Callable[[], Awaitable[float]]) -> None:
        """Hear the server's clock every minute until cancelled; ``ask`` as in `hear`."""
        while True:
            heard = await self.hear(ask)
            await asyncio.sleep(ASK_EVERY_S if heard else ASK_AGAIN_S)

    async def hear(self, ask: Callable[[], Awaitable[float]]) -> bool:
        """Hear it once; whether it said anything. ``ask``: its seconds, or `QueueUnavailableError`."""
        asked = self._steady()
        try:
            self.heard(await ask(), asked, self._steady())
        except QueueUnavailableError:
            return False
        return True


def _side(off: float) -> str:
    return "ahead" if off > 0 else "behind"


SHARED = Clock()
"""This process's. `jetstream.nats_broker` lets it hear the server; beside a broker in memory it is the machine's."""


def now() -> float:
    """The time of the deployment, by this process's clock."""
    return SHARED.now()
