"""Keeps work that kills its worker from taking others along: what was lost twice before is computed alone.

Everything in a worker's hands is lost when it dies, and delivered again. Five such deaths would use up the deliveries
of all, though one of them was the cause. So work that comes for the third time waits until nothing else is computed,
and is marked in the broker while it is: when the worker dies again, the mark tells which it was, and the next worker
computes that one last. What comes for the fourth time without a mark was never tried alone, for there is more than one
that kills: it gets its deliveries back. Owns the order and the marks; what is done in one's turn is the worker's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from sie_broker.contract import Bucket, Delivery
from sie_broker.subjects import token
from sie_sdk.errors import QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.bundle.isolation")

SUSPECT = 3
"""The delivery from which on a work is a suspect. The first two deaths may be anything: a pod taken, a full node."""
LATE_S = 0.1
"""How long work that was lost once waits for suspects that come with it: they must not be lost with it again."""
SETTLE_S = 1.0
"""How long a marked suspect waits for others that were lost with it: they come at the same time, and go first."""

PATIENCE_S = 60.0
"""How long anybody waits for a turn at most: a suspect may as well hang as kill."""

T = TypeVar("T")


class Isolation:
    """Whose turn it is in one worker. ``marks``: a bucket whose values live longer than a worker takes to come back."""

    def __init__(self, marks: Bucket) -> None:
        self.marks = marks
        self.suspects: list[_Suspect] = []
        self.others = 0
        self.sparing = 0
        self.hung = False
        self._moved = asyncio.Event()

    async def spared(self, delivery: Delivery) -> bool:
        """Whether the delivery was queued anew: others cost it its deliveries."""
        if delivery.attempt <= SUSPECT:
            return False
        self.sparing += 1  # nobody begins meanwhile, who might cost it one more
        try:
            if await is_marked(self.marks, delivery.work.id) or not await _unless_away(delivery.requeue()):
                return False
        finally:
            self.sparing -= 1
            self.settle()
        log.warning("work %s was lost with others %d times and is queued anew", delivery.work.id, delivery.attempt - 1)
        return True

    def of(self, delivery: Delivery) -> AbstractAsyncContextManager[None]:
        """The turn of one delivery, from its computation to its acknowledgement."""
        if delivery.attempt >= SUSPECT or delivery.requeues:
            return _Suspect(self, delivery)
        return _Turn(self, late=delivery.attempt > 1)

    @property
    def free(self) -> bool:
        """Whether work that is no suspect may begin."""
        return self.hung or (not self.suspects and not self.sparing)

    def settle(self) -> None:
        """One that others wait for has ended, and with the last of them what hung."""
        self.hung = self.hung and bool(self.suspects or self.sparing)
        self.move()

    def move(self) -> None:
        """Something ended: let everybody look again whether it is their turn."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when it holds, or after `PATIENCE_S`; then nobody else waits any more."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await self._moved.wait()
        except TimeoutError:
            self.hung = True
            self.move()


class _Turn:
    """The turn of work that is no suspect: together with others, but not beside a suspect."""

    def __init__(self, isolation: Isolation, *, late: bool) -> None:
        self._isolation = isolation
        self._late = late

    async def __aenter__(self) -> None:
        if self._late:
            await asyncio.sleep(LATE_S)
        if not self._isolation.free:
            await self._isolation.until(lambda: self._isolation.free)
        self._isolation.others += 1

    async def __aexit__(self, *_: object) -> None:
        self._isolation.others -= 1
        if self._isolation.suspects:
            self._isolation.move()


class _Suspect:
    """The turn of one suspect: alone, after those that are less suspect."""

    def __init__(self, isolation: Isolation, delivery: Delivery) -> None:
        self._isolation = isolation
        self._id = delivery.work.id
        self._running = False
        self._again = delivery.attempt > SUSPECT or delivery.requeues > 0
        self.attempt = delivery.attempt
        self.marked = False

    @property
    def order(self) -> tuple[bool, int]:
        """Marked ones last, and first of all who has the fewest deliveries left."""
        return self.marked, -self.attempt

    def is_next(self) -> bool:
        """Whether nothing else is computed, and nobody goes before."""
        if self._isolation.hung:
            return True
        if self._isolation.others or self._isolation.sparing:
            return False
        others = [each for each in self._isolation.suspects if each is not self]
        return not any(each._running or each.order < self.order for each in others)

    async def __aenter__(self) -> None:
        if self._again:
            self.marked = await is_marked(self._isolation.marks, self._id)
        self._isolation.suspects.append(self)
        try:
            if self.marked:
                log.warning("work %s was being computed when a worker was lost; it waits for the others", self._id)
                await asyncio.sleep(SETTLE_S)
            await self._isolation.until(self.is_next)
            self._running = True
            # Its answer also says that the server has read all that was sent before: no acknowledgement can be lost.
            await _unless_away(self._isolation.marks.put(_mark(self._id), b"%d" % self.attempt))
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()
        await _unless_away(self._isolation.marks.delete(_mark(self._id)))

    def _leave(self) -> None:
        self._isolation.suspects.remove(self)
        self._isolation.settle()


async def is_marked(marks: Bucket, work_id: str) -> bool:
    """Whether the work was being computed alone when a worker was lost."""
    return await _unless_away(marks.get(_mark(work_id))) is not None


def _mark(work_id: str) -> str:
    return f"suspect.{token(work_id)}"


async def _unless_away(asked: Awaitable[T]) -> T | None:
    """What the broker says; None while it is away or full: a missing mark costs at most another death."""
    try:
        return await asked
    except (QueueUnavailableError, QueueFullError) as error:
        log.warning("a suspect is not marked: %s", error)
        return None
