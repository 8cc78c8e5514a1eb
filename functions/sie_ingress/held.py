"""Requests that are held open until their reply comes: for how long, and what lets them go together.

Owns the waiting and nothing of what comes after it: a caller that is let go gets its job (``submit``). When the ingress
leaves, every held request is let go at once, so that none is cut; so are a lane's when its workers are given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sie_broker.records import Lane
from sie_ingress.caller import ANYBODY, Caller

T = TypeVar("T")

LAST_LOOK_S = 1.0
"""How much longer than its own end a wait for a kept result is held: it ends with a look, which is to come back."""


class Held:
    """All held requests of one ingress; one event loop only."""

    def __init__(self) -> None:
        self._left = False
        self._wakers: dict[Callable[[], None], Lane] = {}

    @property
    def left(self) -> bool:
        """Whether nobody is held any more."""
        return self._left

    def leave(self) -> None:
        """Let everybody go, now and from now on."""
        self._left = True
        for wake in list(self._wakers):
            wake()

    def let_go(self, lane: Lane) -> None:
        """Let those go now who wait for a worker of ``lane``."""
        for wake in [wake for wake, waits_for in self._wakers.items() if waits_for == lane]:
            wake()

    async def within(self, seconds: float, answer: Awaitable[T], lane: Lane, caller: Caller = ANYBODY) -> T | None:
        """The answer if it comes within ``seconds`` and before `leave` or `let_go` of its lane; what the answer raises.
        None, too, when its ``caller`` has left.

        A future stays usable when it did not come (a plain timeout would cancel it); a coroutine is cancelled.
        """
        loop = asyncio.get_running_loop()
        answered, woken = asyncio.ensure_future(answer), loop.create_future()

        def wake(*_: object) -> None:
            if not woken.done():
                woken.set_result(None)

        timer = loop.call_later(max(0.0, 0.0 if self._left else seconds), wake)
        answered.add_done_callback(wake)
        self._wakers[wake] = lane
        caller.on_left(wake)
        try:
            await woken
        finally:
            timer.cancel()
            answered.remove_done_callback(wake)
            del self._wakers[wake]
            if answered is not answer and not answered.done():
                answered.cancel()
        return answered.result() if answered.done() and not answered.cancelled() else None
