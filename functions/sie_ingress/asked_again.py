"""Requests that were let go while their work went on, or with their answer there: sent again, they are the same job.

Published clients, and those of other services (``dialects``), send no key with a request, and after a 503 or 504 the
same request again. Without this, one that takes longer than a request is held would be computed anew each time, behind
what is left of itself. Owns the memory of those that were let go, of this ingress: another one computes anew. Nothing
is looked up, or costs anything, while nobody was.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from sie_broker import clock
from sie_broker.jobs import Job, job_of
from sie_broker.merge import part_id
from sie_broker.records import Reply, Work
from sie_ingress.caller import ANYBODY
from sie_ingress.submit import Holds
from sie_sdk.errors import UnavailableError

REMEMBERED = 1024
REMEMBERED_S = 900.0
"""As long as a published client tries by default."""

Place = Callable[[Work, list[Work], Holds], Awaitable[Reply | Job]]
"""Submits a request; the answer, or the job it has become."""


class AskedAgain:
    """The jobs of requests that were let go, by what was asked. ``clock``: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._jobs: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def let_go(self, whole: Work, works: list[Work]) -> None:
        """The caller was told to ask again; its work goes on as job ``whole.id``."""
        mark = _mark(whole, works)
        self._jobs[mark] = whole.id, self._clock() + REMEMBERED_S
        self._jobs.move_to_end(mark)
        if len(self._jobs) > REMEMBERED:
            self._jobs.popitem(last=False)

    def answered(self, whole: Work, works: list[Work]) -> None:
        """Its answer was given out: the same once more is a request of its own."""
        if self._jobs:
            self._jobs.pop(_mark(whole, works), None)

    async def place(self, whole: Work, works: list[Work], holds: Holds, place: Place, *, lets_go: bool) -> Reply | Job:
        """What comes of ``place``, to which a request without a key is given as the job that it was before.

        ``lets_go``: a caller that cannot follow a job is let go with it. So is one for whose answer there is no memory.
        """
        if holds.key is None and holds.answers:
            if (before := self.before(whole, works)) is not None:
                (whole, works), holds = before, holds._replace(key="again", caller=ANYBODY)
            holds = holds._replace(take=partial(self._take, whole, works, holds.take))
        outcome = await place(whole, works, holds)
        if isinstance(outcome, Reply):
            self.answered(whole, works)
        elif lets_go:
            self.let_go(whole, works)
        return outcome

    def _take(self, whole: Work, works: list[Work], take: Callable[[int], None], size: int) -> None:
        try:
            take(size)
        except UnavailableError:
            self.let_go(whole, works)
            raise

    def before(self, whole: Work, works: list[Work]) -> tuple[Work, list[Work]] | None:
        """The same request as the job that it was before; None when it is a new one."""
        while self._jobs and next(iter(self._jobs.values()))[1] < self._clock():
            self._jobs.popitem(last=False)
        if not self._jobs or (known := self._jobs.get(_mark(whole, works))) is None:
            return None
        job, _ = known
        named = msgspec.structs.replace(whole, id=job)
        if len(works) == 1:
            return named, [msgspec.structs.replace(works[0], id=job)]
        return named, [msgspec.structs.replace(work, id=part_id(job, part)) for part, work in enumerate(works)]


def _mark(whole: Work, works: list[Work]) -> bytes:
    """What was asked, of whom and on whose behalf."""
    asked = hashlib.blake2b(digest_size=16, person=b"sie-again")
    asked.update(msgspec.msgpack.encode((whole.op, whole.model, whole.lane, whole.priority, whole.tenant)))
    for work in works:
        asked.update(job_of(work).digest)
    return asked.digest()
