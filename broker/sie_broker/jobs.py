"""Jobs: what is known of accepted work whose answer nobody is holding a connection for.

Owns the two entries of a job in the jobs bucket, ``job.<id>`` (accepted) and ``result.<id>`` (answered), and where its
work went that was queued anew (``anew.<stream>.<sequence>``). The bucket's lifetime is the job's lifetime. Who computes
and who asks is not decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable

import msgspec

from sie_broker.contract import Bucket
from sie_broker.records import Lane, Reply, Work
from sie_broker.subjects import token
from sie_sdk.errors import QueueUnavailableError
from sie_sdk.refusals import MAY_PASS

LIFETIME_S = 3600.0
"""How long a job and its result can be asked for."""
LOOK_AGAIN_S = 5.0
"""How often a result that is waited for is looked for: what is told while the connection is lost is not told again."""
SOON_S = 0.02
"""When it is looked for first, and then each time four times as late: a server tells of a value before it has stored
it, so between the two a result is neither told nor found by who comes just then."""
RESULTS = "result."
"""How the keys of results begin, which may have a megabyte each."""


class Job(msgspec.Struct, frozen=True):
    """Accepted work. ``digest`` is of model and body, so that a reused Idempotency-Key is noticed."""

    id: str
    lane: Lane
    model: str
    accepted: float
    digest: bytes = b""
    sizes: tuple[int, ...] = ()
    """Items of each part, when the request was split; the parts are jobs of their own."""
    sequence: int = 0
    """Of its work, or of any part's, in its queue; 0 if nobody said. What is queued no more and has no result was too
    old, or its answer is another's."""
    shared: bool = False
    """Whether that work was queued for another request of the same key, which may take its answer: then it is no result
    of the job until somebody keeps it as one (``sie_ingress.follow``). Of one in parts its parts say it."""


_jobs = msgspec.msgpack.Decoder(Job)
_replies = msgspec.msgpack.Decoder(Reply)
_encoder = msgspec.msgpack.Encoder()


def digest(model: str, body: bytes) -> bytes:
    """16 bytes that tell two requests apart."""
    name = model.encode()
    both = hashlib.blake2b(b"%d:%b" % (len(name), name), digest_size=16, person=b"sie-job")
    both.update(body)
    return both.digest()


def digest_of_parts(digests: Iterable[bytes]) -> bytes:
    """The same of a request in parts, from theirs in order."""
    return hashlib.blake2b(b"".join(digests), digest_size=16, person=b"sie-parts").digest()


def job_of(work: Work) -> Job:
    """The job that one work is."""
    # The operation too: one body may be valid for two of them.
    own = digest(f"{work.op}:{work.model}", work.data)
    return Job(id=work.id, lane=work.lane, model=work.model, accepted=work.time, digest=own)


def on_its_own(job: Job, sequence: int = 0) -> Job:
    """The job, now that it has work of its own, whose answer is kept for it; ``sequence``: of that, if it is known."""
    return msgspec.structs.replace(job, sequence=sequence, shared=False)


async def accept(bucket: Bucket, job: Job) -> None:
    """Record that the job exists; its work must be durable already."""
    await bucket.put(f"job.{token(job.id)}", _encoder.encode(job))


async def accept_first(bucket: Bucket, job: Job) -> bool:
    """As `accept`, unless one of its id exists; whether none did."""
    return await bucket.replace(f"job.{token(job.id)}", _encoder.encode(job), 0) is not None


async def find(bucket: Bucket, job_id: str) -> Job | None:
    """The accepted job, or None when there is none or its lifetime has passed."""
    value = await bucket.get(f"job.{token(job_id)}")
    return None if value is None else _jobs.decode(value)


async def forget(bucket: Bucket, job_id: str) -> None:
    """Forget that there is such a job, whose work is queued no more."""
    key = f"job.{token(job_id)}"
    if (known := await bucket.read(key)).value is not None:
        await bucket.remove(key, known.revision)


async def keep(bucket: Bucket, reply: Reply) -> None:
    """Keep the reply as the job's result. An error does not take the place of an answer.

    It may be that of a worker that stood still while another had its lease, and answered.
    """
    key, value = f"{RESULTS}{token(reply.id)}", _encoder.encode(reply)
    if reply.status < 400:
        await bucket.put(key, value)
        return
    while True:
        kept = await bucket.read(key)
        if kept.value is not None and _replies.decode(kept.value).status < 400:
            return
        if await bucket.replace(key, value, kept.revision) is not None:
            return


async def keep_first(bucket: Bucket, reply: Reply, revision: int) -> None:
    """Keep the reply as the job's result, unless there is one, or was one since `result_revision` was ``revision``."""
    key = f"{RESULTS}{token(reply.id)}"
    if (kept := await bucket.read(key)).value is None and kept.revision == revision:
        await bucket.replace(key, _encoder.encode(reply), revision)


async def result(bucket: Bucket, job_id: str) -> Reply | None:
    """The job's result, or None when it is not there yet."""
    value = await bucket.get(f"{RESULTS}{token(job_id)}")
    return None if value is None else _replies.decode(value)


def may_pass(reply: Reply) -> bool:
    """Whether the reply is an error that the same request may not get again: whoever repeats it wants to know."""
    return reply.status in MAY_PASS


async def failed(bucket: Bucket, job_id: str) -> int | None:
    """Which result is kept for the job, if it is an error that may pass; for `Broker.submit` and `forget_result`."""
    kept = await bucket.read(f"{RESULTS}{token(job_id)}")
    return kept.revision if kept.value is not None and may_pass(_replies.decode(kept.value)) else None


async def result_revision(bucket: Bucket, job_id: str) -> int:
    """Which result is kept for the job, for `forget_result`."""
    return (await bucket.read(f"{RESULTS}{token(job_id)}")).revision


async def forget_result(bucket: Bucket, job_id: str, revision: int) -> None:
    """Forget the job's result if it is still that one; a newer one stays."""
    await bucket.remove(f"{RESULTS}{token(job_id)}", revision)


async def queued_anew(bucket: Bucket, stream: str, sequence: int, anew: int) -> None:
    """Note that the work of one sequence is that of another one now: its receipts stay good."""
    await bucket.put(f"anew.{stream}.{sequence}", b"%d" % anew)


async def where_anew(bucket: Bucket, stream: str, sequence: int) -> int:
    """The sequence that work which is not at its own any more was queued anew at; 0: it was not."""
    return int(await bucket.get(f"anew.{stream}.{sequence}") or 0)


async def wait_result(bucket: Bucket, job_id: str, timeout: float) -> Reply | None:
    """The job's result as soon as it is there; None after ``timeout`` seconds without one."""
    if timeout <= 0:
        return await result(bucket, job_id)
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    arrived: asyncio.Future[bytes] = loop.create_future()

    def on_change(_key: str, value: bytes | None) -> None:
        if value is not None and not arrived.done():
            arrived.set_result(value)

    async with bucket.watch(on_change, f"{RESULTS}{token(job_id)}"):
        # Look after the watch is on: a result kept just before it would never be told.
        if (reply := await result(bucket, job_id)) is not None:
            return reply
        pause = SOON_S
        while (left := end - loop.time()) > 0:
            await asyncio.wait({arrived}, timeout=min(left, pause, LOOK_AGAIN_S))
            pause *= 4
            if arrived.done():
                # Taken as it is: a watch hears of a value before the server has stored it for reading.
                return _replies.decode(arrived.result())
            with contextlib.suppress(QueueUnavailableError):  # it may be back before the end
                if (reply := await result(bucket, job_id)) is not None:
                    return reply
    return await result(bucket, job_id)
