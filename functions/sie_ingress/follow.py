"""Follows work that was queued before, for another caller: its reply goes to that one, wherever it waits.

Owns finding that reply, and bringing it to the job that a repeat has become: its caller asks for the result of the job,
and who takes a reply keeps none. Not here: who may repeat what, and what is computed again for a repeat that waits
(``submit``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from sie_broker import jobs, merge
from sie_broker.contract import Broker
from sie_broker.ending import end
from sie_broker.jobs import Job
from sie_broker.records import Reply, Work
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.ingress.follow")

HELD_S, JOB_S = 1.0, 5.0
"""How often is asked whether work is still queued, for one who waits and for a job: nothing else is heard of a reply
that another ingress took."""


async def reply_of(
    broker: Broker, work: Work, sequence: int, coming: asyncio.Future[Reply], look_s: float = HELD_S
) -> Reply | None:
    """The reply to work of that sequence which this ingress asked for, whose inbox we share, or another did.

    None: computed, but its answer went to a caller that is gone, or was an error that may pass.
    """
    while True:
        # In this order: what is not queued any more was answered before, so that a result kept of it is there now.
        queued = await broker.queued(work.lane, sequence)
        kept = asyncio.create_task(jobs.wait_result(broker.jobs, work.id, look_s if queued else 0.0))
        either: set[asyncio.Future[Reply | None]] = {kept, cast(asyncio.Future[Reply | None], coming)}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(kept)
        if coming.done():
            return coming.result()
        if (reply := kept.result()) is not None and (queued or not jobs.may_pass(reply)):
            return msgspec.structs.replace(reply, kept=True)
        if not queued:
            return None


async def missed(broker: Broker, job: Job) -> bool:
    """Whether the job's work, or a part's, is gone without a result: it was too old, or went to another caller.

    Who follows it brings the latter within `JOB_S`. If that ingress is gone, or it was too old, only a repeat of the
    request has the body that can be computed once more.
    """
    if not job.sequence:
        return False
    for id in merge.ids(job.id, job.sizes):
        each = await jobs.find(broker.jobs, id) if job.sizes else job
        if each is not None and await unanswered(broker, each):
            return True
    return False


async def unanswered(broker: Broker, job: Job) -> bool:
    """Whether the one work of a job is known to be queued no more, and there is no result of it."""
    # In this order: what is not queued any more was answered before.
    if not job.sequence or await broker.queued(job.lane, job.sequence):
        return False
    return await jobs.result(broker.jobs, job.id) is None


class Following:
    """The works that are followed for their jobs, being queued for somebody else. One event loop only.

    ``release(id)``: called when the job has a reply, which owns its payload from then on.
    """

    def __init__(self, broker: Broker, release: Callable[[str], object]) -> None:
        self._broker = broker
        self._release = release
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, work: Work, sequence: int) -> None:
        """Whatever the work of that sequence is answered becomes the result of job ``work.id``; returns at once.

        The job's work must be durable, and the job recorded. It is computed once more where its answer was lost.
        """
        if work.id not in self._tasks:
            task = self._tasks[work.id] = asyncio.create_task(self._follow(work, sequence))
            task.add_done_callback(lambda _: self._tasks.pop(work.id))

    async def shared(self, reply: Reply) -> Reply:
        """A reply that a repeat takes: also its job's, if there is one, for the hold of the first request was over.

        Raises:
            QueueUnavailableError: nobody knows whether there is one; asked again, it is computed anew, for both.
        """
        if reply.kept or await jobs.find(self._broker.jobs, reply.id) is None:
            return reply
        await self._keep(reply)
        return msgspec.structs.replace(reply, kept=True)

    async def _follow(self, work: Work, sequence: int) -> None:
        try:
            async with asyncio.timeout(jobs.LIFETIME_S):
                while True:
                    try:
                        return await self._bring(work, sequence)
                    except SIEError as error:  # the broker is away, or has no room
                        log.warning("the answer of job %s is looked for again: %s", work.id, error)
                        await asyncio.sleep(HELD_S)
        except TimeoutError:
            log.warning("job %s has ended without an answer", work.id)

    async def _bring(self, work: Work, sequence: int) -> None:
        with self._broker.expect(work.id) as (_, coming):
            reply = await reply_of(self._broker, work, sequence, coming, JOB_S)
        if reply is None:
            receipt = await self._broker.submit(msgspec.structs.replace(work, reply_to=None), after=-sequence)
            if (job := await jobs.find(self._broker.jobs, work.id)) is not None:
                await jobs.accept(self._broker.jobs, jobs.on_its_own(job, receipt.sequence))
        elif not reply.kept:
            await self._keep(reply)

    async def _keep(self, reply: Reply) -> None:
        await jobs.keep(self._broker.jobs, reply)
        self._release(reply.id)
