"""From work to its answer: publish first, then wait; what outlives the wait becomes a job.

Owns the promise that accepted work is neither lost nor computed twice: one id per request (the Idempotency-Key's, if
there is one), durable before anything is answered. Not here: HTTP (``inference``, ``jobs``), the queue
(``sie_broker``).
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from sie_broker import claim, jobs
from sie_broker.contract import Broker
from sie_broker.jobs import Job
from sie_broker.merge import part_id, whole
from sie_broker.records import Lane, Reply, Submission, Work
from sie_ingress.caller import ANYBODY, Caller
from sie_ingress.follow import Following, reply_of, unanswered
from sie_ingress.held import LAST_LOOK_S, Held
from sie_ingress.lanes import Lanes
from sie_ingress.memory import uncounted
from sie_ingress.notices import Notices
from sie_ingress.recent import RecentReplies, same_request
from sie_sdk.errors import PayloadLostError

FRESH_S = 60.0


def job_id(idempotency_key: str, tenant: str = "") -> str:
    """The one job an Idempotency-Key stands for, each tenant's its own; 32 hex digits."""
    whose = hashlib.blake2b(tenant.encode(), digest_size=32).digest() if tenant else b""
    return hashlib.blake2b(idempotency_key.encode(), digest_size=16, key=whose, person=b"sie-job-id").hexdigest()


def made_just_now(idempotency_key: str, now: float) -> bool:
    """Whether the key is a UUIDv7 (RFC 9562, section 5.7) of the last minute, as our SDK makes them.

    A repeat of such a key falls into the broker's duplicate window (two minutes), so the record of older jobs need not
    be asked: a round trip less on every warm request.
    """
    try:
        key = uuid.UUID(idempotency_key)
    except ValueError:
        return False
    return key.version == 7 and 0.0 <= now - (key.int >> 80) / 1000 < FRESH_S


class Holds(NamedTuple):
    """How long a request may be held, in seconds, and the Idempotency-Key it came with: it may be known already."""

    warm_s: float
    cold_s: float
    key: str | None = None
    answers: bool = True
    """Whether its caller can be answered at all: else it becomes a job, even if its answer is there."""
    queued_anyway: bool = False
    """Whether it is queued although nobody waits for the lane's workers any more; else it is refused then."""
    take: Callable[[int], None] = uncounted
    """Takes memory for an answer of that size before it is fetched; raises `UnavailableError` where there is none."""
    caller: Caller = ANYBODY
    """The only one who waits for the answer: if it leaves, the work is withdrawn."""


class Submitter:
    """Places work on the broker and brings back its `Reply`, or the `Job` it has become."""

    def __init__(self, broker: Broker, lanes: Lanes, held: Held, max_reply_bytes: int) -> None:
        self._broker = broker
        self._lanes = lanes
        self._held = held
        self._max_reply_bytes = max_reply_bytes
        self._recent = RecentReplies(broker.payloads)
        self._following = Following(broker, self._recent.release)
        self._notices = Notices(broker, lanes)
        lanes.on_given_up(held.let_go)

    async def place(self, works: Sequence[Work], holds: Holds, sizes: Sequence[int], job_id: str) -> Reply | Job:
        """Publish a request's works, one or its parts, and wait for all replies as long as ``holds`` says.

        Raises:
            IdempotencyMismatchError: the key was used for a different request.
            QueueFullError, QueueUnavailableError: not everything was accepted; a repeat of the key completes it.
            ProvisioningFailedError: the lane's workers are given up, and nothing more was accepted.
            PayloadTooLargeError, PayloadLostError: the answer cannot be had.
            UnavailableError: it cannot be had now; a repeat of the id finds it.
            CancelledByCallerError: its caller has hung up.
        """
        digests = {work.id: jobs.job_of(work).digest for work in works}
        if len(works) > 1:
            digests[job_id] = jobs.digest_of_parts(digests.values())
        else:  # its key may just have been one of a request in parts
            self._recent.get(part_id(job_id, 0), digests[job_id])
        with self._recent.using(digests), holds.caller.watched():
            return await self._place_all(works, holds, sizes, job_id, digests)

    async def _place_all(
        self, works: Sequence[Work], holds: Holds, sizes: Sequence[int], job_id: str, digests: Mapping[str, bytes]
    ) -> Reply | Job:
        if len(works) == 1:
            outcomes = [await self._place(works[0], digests[job_id], holds)]
        else:
            if holds.key is not None:
                await self._same_job(job_id, digests[job_id])
            parts = {work.id: self._place(work, digests[work.id], holds) for work in works}
            outcomes = await self._recent.of_parts(parts)
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        if holds.answers and len(replies) == len(works):
            self._recent.take(holds.take, replies, digests)
            return await self._whole(job_id, works, replies, sizes, remember=holds.key is not None)
        if isinstance(job := outcomes[0], Job) and len(works) == 1:
            return job
        sequence = max((outcome.sequence for outcome in outcomes if isinstance(outcome, Job)), default=0)
        for work, outcome in zip(works, outcomes, strict=True):
            if isinstance(outcome, Reply):  # whoever asks for the job needs this one too
                await jobs.keep(self._broker.jobs, msgspec.structs.replace(outcome, id=work.id))
                self._recent.release(work.id)
        if len(works) == 1:
            return await self._accept(works[0], digests[job_id])
        whole = msgspec.structs.replace(works[0], id=job_id)
        return await self._accept(whole, digests[job_id], tuple(sizes), sequence)

    async def _whole(
        self, job_id: str, works: Sequence[Work], replies: Sequence[Reply], sizes: Sequence[int], *, remember: bool
    ) -> Reply:
        try:
            return await whole(self._broker.payloads, job_id, replies, sizes, self._max_reply_bytes)
        except PayloadLostError:
            remember = False  # a repeat of the key computes it anew
            raise
        finally:
            if not remember:
                for work in works:
                    self._recent.forget(work.id)

    async def _place(self, work: Work, digest: bytes, holds: Holds) -> Reply | Job:
        warm = self._lanes.live(work.lane)
        given_up = None if warm else self._lanes.given_up(work.lane)
        hold_s = 0.0 if given_up else holds.warm_s if warm else holds.cold_s
        asks = warm and hold_s > 0 and work.reply_to is None
        if holds.key is not None:
            if (recent := self._recent.get(work.id, digest)) is not None:
                return recent
            perhaps_older = not (asks and made_just_now(holds.key, work.time))
            if perhaps_older and (known := await self._known(work, digest, hold_s)) is not None:
                return known
        if given_up is not None and not holds.queued_anyway:
            self._broker.wake(work.lane)  # that somebody asks keeps it being tried
            raise given_up
        if asks:
            return await self._ask(work, digest, hold_s, holds)
        return await self._queue(work, digest, hold_s, holds.caller, warm=warm)

    @property
    def leaving(self) -> bool:
        """Whether this ingress holds no request any more."""
        return self._held.left

    def warm_up(self, lane: Lane) -> None:
        """Ask for a worker without queueing anything."""
        self._lanes.woken(lane)
        self._broker.wake(lane)

    async def _submit(self, work: Work, after: int = 0) -> Submission:
        self._notices.of(work.queue)
        return await self._broker.submit(work, after)

    async def _known(self, work: Work, digest: bytes, hold_s: float) -> Reply | Job | None:
        if (job := await jobs.find(self._broker.jobs, work.id)) is None:
            return None
        same_request(job.digest, digest)
        if not self._lanes.live(job.lane):
            self._broker.wake(job.lane)
        if (failed := await jobs.failed(self._broker.jobs, work.id)) is not None:
            await self._anew(job, work, failed)
            await jobs.forget_result(self._broker.jobs, work.id, failed)
        elif await unanswered(self._broker, job):  # thrown away for its age, or answered to a caller that is gone
            job = await self._anew(job, work, -job.sequence)
        elif job.shared:  # who followed it may be gone
            self._following.begin(work, job.sequence)
        return await self._result(job, hold_s) or job

    async def _anew(self, job: Job, work: Work, after: int) -> Job:
        """Queue a job's work once more; the job as it is then recorded."""
        receipt = await self._submit(work, after)
        job = jobs.on_its_own(job, receipt.sequence)
        await jobs.accept(self._broker.jobs, job)
        return job

    async def _ask(self, work: Work, digest: bytes, hold_s: float, holds: Holds) -> Reply | Job:
        """The warm way: the reply comes to our inbox."""
        with self._broker.expect(work.id) as (inbox, coming):
            receipt = await self._submit(msgspec.structs.replace(work, reply_to=inbox))
            answered = self._repeated(work, digest, receipt.sequence, coming) if receipt.duplicate else coming
            reply = await self._held.within(hold_s, answered, work.lane, holds.caller)
            if reply is None:
                await holds.caller.withdraw_if_left(self._broker, work, receipt.sequence)
                job = await self._accept(work, digest, sequence=receipt.sequence, shared=receipt.duplicate)
                if not coming.done():  # a reply from here on is kept as the job's result, unless another waits for it
                    if job.shared:
                        self._following.begin(work, job.sequence)
                    return job
                reply = coming.result()
            if receipt.duplicate:
                reply = await self._following.shared(reply)
            if not jobs.may_pass(reply) and (holds.key is not None or reply.dataref is not None):
                self._recent.put(digest, reply)
        return reply

    async def _queue(self, work: Work, digest: bytes, hold_s: float, caller: Caller, *, warm: bool) -> Reply | Job:
        """Cold, or nobody waits here: the reply is kept as the job's result, whoever computes it and whenever."""
        receipt = await self._submit(work)
        if receipt.duplicate:
            await self._same_work(work, digest, receipt.sequence)
        if not warm:
            self.warm_up(work.lane)
        shared = receipt.duplicate and work.reply_to is None
        job = await self._accept(work, digest, sequence=receipt.sequence, shared=shared)
        if job.shared:  # the reply goes to another caller, or has gone there already
            self._following.begin(work, job.sequence)
        if hold_s > 0 and (reply := await self._result(job, hold_s, caller)) is not None:
            return reply
        await caller.withdraw_if_left(self._broker, work, receipt.sequence)
        return job

    async def _result(self, job: Job, hold_s: float, caller: Caller = ANYBODY) -> Reply | None:
        """The job's result as soon as it is there; None without one by the end of the hold."""
        if hold_s <= 0:
            return await jobs.result(self._broker.jobs, job.id)
        coming = jobs.wait_result(self._broker.jobs, job.id, hold_s)
        return await self._held.within(hold_s + LAST_LOOK_S, coming, job.lane, caller)

    async def _accept(
        self, work: Work, digest: bytes, sizes: tuple[int, ...] = (), sequence: int = 0, *, shared: bool = False
    ) -> Job:
        job = Job(work.id, work.lane, work.model, work.time, digest, sizes, sequence, shared)
        if not await jobs.accept_first(self._broker.jobs, job):
            await self._same_job(job.id, digest)
            await jobs.accept(self._broker.jobs, job)
        return job

    async def _same_job(self, job_id: str, digest: bytes) -> bool:
        """Refuse a key whose job is another request; whether it has one."""
        job = await jobs.find(self._broker.jobs, job_id)
        if job is not None:
            same_request(job.digest, digest)
        return job is not None

    async def _same_work(self, work: Work, digest: bytes, sequence: int) -> None:
        """Refuse a key whose work was queued for another request: at another ingress, or before it was a job."""
        if await self._same_job(work.id, digest):
            return
        if (queued := await self._broker.work(work.lane, sequence)) is None:
            return  # its answer is nobody's but of who waits for it
        with suppress(PayloadLostError):  # it has just been settled
            queued = await claim.redeem(self._broker.payloads, queued)
            same_request(jobs.job_of(queued).digest, digest)

    async def _repeated(self, work: Work, digest: bytes, sequence: int, coming: asyncio.Future[Reply]) -> Reply:
        """The reply to an id that was accepted a moment ago; computed again when the first one's is not to be had."""
        await self._same_work(work, digest, sequence)
        again, reply = work, await reply_of(self._broker, work, sequence, coming)
        while reply is None:
            if (recent := self._recent.get(work.id, digest)) is not None:
                return recent  # another caller had it computed again meanwhile
            again = msgspec.structs.replace(again, id=f"{again.id}-again")
            with self._broker.expect(again.id) as (inbox, coming):
                receipt = await self._submit(msgspec.structs.replace(again, reply_to=inbox))
                if receipt.duplicate:
                    await self._same_work(again, digest, receipt.sequence)
                    reply = await reply_of(self._broker, again, receipt.sequence, coming)
                else:
                    reply = await coming
        if again is work:
            return reply
        if (recent := self._recent.get(work.id, digest)) is not None:
            return recent  # the same one, and whoever remembers it owns its payload
        reply = msgspec.structs.replace(reply, id=work.id)
        if not jobs.may_pass(reply):
            self._recent.put(digest, reply)  # here, before anything else is heard of: nobody asks for it once more
        return reply
