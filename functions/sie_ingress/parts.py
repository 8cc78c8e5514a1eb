"""Large requests in parts: split before they are queued, merged when all parts are answered. Pure.

A part is small enough for one message each way and for several workers to share a request; the caller sees one request
and one answer. Which parts belong together is the job's record (``sie_broker.jobs``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from sie_broker.contract import Reply
from sie_sdk.types import EncodeRequest, Item, Timing, Usage

PART_ITEMS = 256
"""At most this many items in a part: at 1024 float32 dimensions a reply of 1 MiB, an eighth of a message."""
PART_BYTES = 1024 * 1024
"""At most this many bytes of text, ids and metadata in a part, unless a single item has more."""


class _Body(msgspec.Struct):
    model: str
    items: list[msgspec.Raw]
    timing: Timing
    usage: Usage


_body = msgspec.msgpack.Decoder(_Body)
_error = msgspec.json.Decoder(dict[str, dict[str, object]])


def split(request: EncodeRequest) -> list[EncodeRequest]:
    """The request in parts, in order; itself alone when it is small enough."""
    parts: list[list[Item]] = [[]]
    size = 0
    for item in request.items:
        cost = len(item.text or "") + len(item.id or "") + (len(str(item.metadata)) if item.metadata else 0)
        if parts[-1] and (len(parts[-1]) == PART_ITEMS or size + cost > PART_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += cost
    if len(parts) == 1:
        return [request]
    return [msgspec.structs.replace(request, items=items) for items in parts]


def part_id(job_id: str, part: int) -> str:
    """The id of one part's work."""
    return f"{job_id}-{part}"


def merge(job_id: str, replies: Sequence[Reply], sizes: Sequence[int]) -> Reply:
    """The answer to the whole request from its parts' replies; ``sizes`` are their numbers of items.

    An error of any part is the error of the request, its field counted from the request's first item. The timing is
    that of the part that took longest; usage adds up.
    """
    offsets = [0, *accumulate(sizes)]
    for reply, offset in zip(replies, offsets, strict=False):
        if reply.status >= 400:
            return msgspec.structs.replace(reply, id=job_id, data=_shifted(reply.data, offset))
    bodies = [_body.decode(reply.data) for reply in replies]
    whole = _Body(
        model=bodies[0].model,
        items=[item for body in bodies for item in body.items],
        timing=max((body.timing for body in bodies), key=lambda timing: timing.total_ms),
        usage=Usage(input_tokens=sum(body.usage.input_tokens for body in bodies)),
    )
    workers = sorted({reply.worker for reply in replies})
    return Reply(id=job_id, data=msgspec.msgpack.encode(whole), worker=",".join(workers))


def _shifted(error: bytes, offset: int) -> bytes:
    """An error body with ``items[i]`` of its part as ``items[i + offset]`` of the request."""
    body = _error.decode(error)
    if isinstance(field := body["error"].get("param"), str):
        body["error"]["param"] = re.sub(r"^items\[(\d+)\]", lambda at: f"items[{int(at[1]) + offset}]", field)
    return msgspec.json.encode(body)
