"""What a process does as long as it lives, beside what it is asked to: tasks that run until they are ended.

One that fails takes its process along, which leaves as on SIGTERM and with exit status 1: a process that looks well and
does half of its work is worse than none, and a platform starts another. Errors that pass are the tasks' own to outlive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sie_broker.ending import end

log = logging.getLogger("sie.duties")


class Duties:
    """The tasks of a process, or of a part of one. ``stop`` is set when one of them fails."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do this from now on; it may return when it is done for good, and be cancelled."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.add(task)
        return task

    async def end(self) -> None:
        """End them all, and return when they have ended."""
        await end(*self._tasks)

    def check(self) -> None:
        """Raise what the first of them failed with, if one did."""
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._failure is None:
            self._failure = error
            log.error("a part of this process failed, and it leaves", exc_info=error)
        self._stop.set()
