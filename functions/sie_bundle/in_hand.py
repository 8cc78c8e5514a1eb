"""The work that a worker has in hand: a task each, from its delivery until it is settled.

Owns the tasks, how they are waited for at the end, and what becomes of work that is withdrawn: its task ends, and what
of it has not begun is not computed. What a task does is ``worker``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from sie_broker.contract import Delivery
from sie_broker.ending import end
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.bundle.worker")

WITHDRAWN = 4096
"""So many withdrawn works are remembered: they may still be on their way here."""


class InHand:
    """One event loop only."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._withdrawn: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work_id: str, doing: Coroutine[None, None, None], ended: Callable[[], None]) -> None:
        """Do this for that work from now on, and then call ``ended``."""

        def done(task: asyncio.Task[None]) -> None:
            del self._tasks[task]
            ended()

        task = asyncio.create_task(doing)
        self._tasks[task] = work_id
        task.add_done_callback(done)

    def withdraw(self, work_id: str) -> None:
        """Nobody wants this work any more."""
        self._withdrawn[work_id] = None
        if len(self._withdrawn) > WITHDRAWN:
            self._withdrawn.popitem(last=False)
        for task in [task for task, in_hand in self._tasks.items() if in_hand == work_id]:
            asyncio.get_running_loop().call_soon(task.cancel)  # behind its first step, else it would settle nothing

    async def unless_withdrawn(self, delivery: Delivery, settle: Callable[[Delivery], Awaitable[None]]) -> None:
        """Settle the delivery so; one that is withdrawn, before or meanwhile, is just over."""
        if delivery.work.id not in self._withdrawn:
            try:
                await settle(delivery)
                return
            except asyncio.CancelledError:
                if delivery.work.id not in self._withdrawn:
                    raise  # the worker leaves
        with suppress(QueueUnavailableError):
            await delivery.ack()

    async def drain(self, within_s: float) -> None:
        """Wait for all; after ``within_s`` seconds the rest ends, to be given back."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=within_s)
            if late:
                log.warning("%d requests are given back, not done after %g s", len(late), within_s)
            await end(*late)
