"""One answer from the answers to a request's parts. Owns the parts' ids, and all that is read of their bodies here.

How a request is split is the ingress's (``sie_ingress.parts``); that its parts belong together says its job (``jobs``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from sie_broker import claim, jobs
from sie_broker.contract import Bucket, Payloads
from sie_broker.jobs import Job
from sie_broker.records import Reply
from sie_sdk.chunks import ranked
from sie_sdk.errors import PayloadTooLargeError
from sie_sdk.types import PairUsage, ScoreEntry, Timing, Usage


def part_id(job_id: str, part: int) -> str:
    """The id of one part's work."""
    return f"{job_id}-{part}"


def ids(job_id: str, sizes: Sequence[int]) -> list[str]:
    """Of the works whose answers are the job's; ``sizes``: items of each part, if the request was split."""
    return [part_id(job_id, part) for part in range(len(sizes))] or [job_id]


async def collect(bucket: Bucket, job: Job, hold_s: float) -> list[Reply] | None:
    """The job's result, or its parts', as soon as all are there; None after ``hold_s`` seconds without them.

    `whole` makes one answer of them.
    """
    found = await asyncio.gather(*(jobs.wait_result(bucket, each, hold_s) for each in ids(job.id, job.sizes)))
    replies = [reply for reply in found if reply is not None]
    return replies if len(replies) == len(found) else None


async def whole(
    payloads: Payloads, job_id: str, replies: Sequence[Reply], sizes: Sequence[int], max_bytes: int
) -> Reply:
    """One reply with all its data, which large replies have in a store (``claim``); nothing stored is dropped.

    ``sizes``: items of each part, when there are parts.

    Raises:
        PayloadTooLargeError: it is over ``max_bytes``; nothing was fetched.
        PayloadLostError: some of it is no longer stored, or damaged.
    """
    size = sum(map(claim.size, replies))
    if size > max_bytes:
        raise PayloadTooLargeError(
            f"The answer takes {size} bytes.",
            field="items",
            limit=max_bytes,
            hint="Ask for fewer items at once, or raise SIE_MAX_REPLY_BYTES of the ingress.",
        )
    if len(replies) == 1:
        return await claim.redeem(payloads, replies[0])
    return merge(job_id, await asyncio.gather(*(claim.redeem(payloads, reply) for reply in replies)), sizes)


class _Body(msgspec.Struct, omit_defaults=True):
    """Any result. Of encode and extract the items are copied as they came; scores are ranked anew."""

    model: str
    timing: Timing
    usage: Usage
    items: list[msgspec.Raw] | None = None
    scores: list[ScoreEntry] | None = None
    query_id: str | None = None


class _Read(_Body, omit_defaults=True):
    usage: PairUsage


_body = msgspec.msgpack.Decoder(_Read)
_error = msgspec.json.Decoder(dict[str, dict[str, object]])


def merge(job_id: str, replies: Sequence[Reply], sizes: Sequence[int]) -> Reply:
    """The answer to the whole request from its parts' replies; ``sizes`` are their numbers of items.

    An error of any part is the error of the request, its field counted from the request's first item. The timing is
    that of the part that took longest; usage adds up.
    """
    places = [0, *accumulate(sizes)]
    for reply, place in zip(replies, places, strict=False):
        if reply.status >= 400:
            return msgspec.structs.replace(reply, id=job_id, data=_shifted(reply.data, place))
    bodies = [_body.decode(reply.data) for reply in replies]
    tokens = sum(body.usage.input_tokens for body in bodies)
    whole = _Body(
        model=bodies[0].model,
        timing=max((body.timing for body in bodies), key=lambda timing: timing.total_ms),
        usage=Usage(input_tokens=tokens),
        query_id=bodies[0].query_id,
    )
    if bodies[0].scores is None:
        whole.items = [item for body in bodies for item in body.items or ()]
    else:
        whole.usage = PairUsage(input_tokens=tokens, pairs=sum(body.usage.pairs for body in bodies))
        whole.scores = ranked(
            msgspec.structs.replace(entry, index=place + entry.index)
            for body, place in zip(bodies, places, strict=False)
            for entry in body.scores or ()
        )
    workers = sorted({reply.worker for reply in replies})
    return Reply(id=job_id, data=msgspec.msgpack.encode(whole), worker=",".join(workers), cause=replies[0].cause)


def _shifted(error: bytes, place: int) -> bytes:
    """An error body with ``items[i]`` of its part as ``items[i + place]`` of the request."""
    body = _error.decode(error)
    if isinstance(field := body["error"].get("param"), str):
        body["error"]["param"] = re.sub(r"^items\[(\d+)\]", lambda at: f"items[{int(at[1]) + place}]", field)
    return msgspec.json.encode(body)
