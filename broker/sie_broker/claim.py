"""Claim checks: data too large for a message waits in a store, and the message carries its reference (``ce-dataref``).

Owns the form of a reference, what is inline and what is stored, whose a payload is and how long it lives. Not here: the
stores themselves (``payloads`` on NATS, ``memory``), the messages (``envelope``).

A reference is ``nats:<stream>/<owner>/<id>?bytes=<n>&chunk=<n>&crc32=<hex>``: the data lies in the stream's subjects
``sie.payload.<stream>.<owner>.<id>.<0, 1, ...>``, each ``chunk`` bytes long but the last. Every stored payload has an
id of its own, so that no two messages share one: a message submitted twice stores twice, and the second is dropped.

The life of a payload: ``work`` is dropped by the worker that settles its work, after the ack and never before;
``result`` by the ingress that took the reply, or it lives as long as the job that it answers. What is left behind
expires, `MARGIN_S` after it can be of use. A dead letter is not settled by anybody for days: whoever writes one puts
the reference from `to_dead_letter` into it, and drops that payload with the letter. To replay it, that same reference
goes back into the queue: work may refer to ``dead`` payloads of its own, and takes them along when it is settled.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import zlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from sie_broker.contract import Payloads, Store
from sie_broker.records import Reply, Submission, Work
from sie_broker.subjects import name_of, token
from sie_sdk.errors import InvalidInputError, PayloadLostError, SIEError

WORK_INLINE_BYTES = 128 * 1024
"""The most data that travels with its work. A worker asks for 64 at once, of each of its models, and the server cuts a
connection for which 64 MiB have piled up: seen with 64 of 1 MiB while the worker's event loop stood still for 3 s."""
REPLY_INLINE_BYTES = 1280 * 1024
"""The most data that travels with its reply: what 256 dense vectors of 1024 float32 take, and their ids."""
CHUNK_BYTES = 512 * 1024
"""Data is stored in pieces of this size. From 256 KiB to 1 MiB they are about as fast; larger ones are slower."""

STREAMS: dict[Store, str] = {"work": "sie_payloads", "result": "sie_results", "dead": "sie_dead_payloads"}
"""A store's stream. Work and results have one each: were it one, a full one would let no worker answer, and only
answers make room."""
MARGIN_S = 600.0
"""Payloads that nobody drops expire this long after whatever refers to them."""

Record = TypeVar("Record", Work, Reply)


class Reference(NamedTuple):
    """Where one payload is, and what it must be like."""

    store: Store
    owner: str
    """The id of the work whose data or answer it is."""
    id: str
    size: int
    chunk: int
    crc32: int

    def __str__(self) -> str:
        at = f"{STREAMS[self.store]}/{token(self.owner)}/{self.id}"
        return f"nats:{at}?bytes={self.size}&chunk={self.chunk}&crc32={self.crc32:08x}"

    @property
    def chunks(self) -> int:
        """In how many pieces it is."""
        return math.ceil(self.size / self.chunk)

    def length(self, number: int) -> int:
        """Bytes of one piece."""
        return min(self.chunk, self.size - number * self.chunk)


_FORM = re.compile(
    r"nats:(?P<stream>\w+)/(?P<owner>[\w=-]{1,512})/(?P<id>[0-9a-f]{1,64})"
    r"\?bytes=(?P<size>\d{1,12})&chunk=(?P<chunk>[1-9]\d{0,8})&crc32=(?P<crc32>[0-9a-f]{8})"
)
MAX_CHUNKS = 1 << 16
"""In more pieces nobody stores anything; whoever names such a payload wants to fill somebody's memory."""
_STORES = {stream: store for store, stream in STREAMS.items()}


def parse(dataref: str) -> Reference:
    """Read a reference.

    Raises:
        InvalidInputError: it is none of ours.
    """
    if (reference := _read(dataref)) is None or reference.chunks > MAX_CHUNKS:
        raise InvalidInputError(
            f"{dataref[:200]!r} refers to nothing that can be read here.",
            field="dataref",
            hint="Send the data with the request, or store it as sie_broker.claim says.",
        )
    return reference


def _read(dataref: str) -> Reference | None:
    found = _FORM.fullmatch(dataref)
    if found is None or found["stream"] not in _STORES:
        return None
    try:
        owner = name_of(found["owner"])
    except ValueError:
        return None
    return Reference(
        store=_STORES[found["stream"]],
        owner=owner,
        id=found["id"],
        size=int(found["size"]),
        chunk=int(found["chunk"]),
        crc32=int(found["crc32"], 16),
    )


async def refer(store: Store, owner: str, data: bytes) -> Reference:
    """A new reference to ``data``, which is not stored yet."""
    return Reference(store, owner, secrets.token_hex(8), len(data), CHUNK_BYTES, await _checksum(data))


async def verified(reference: Reference, data: bytes) -> bytes:
    """``data`` if it is what the reference was made for.

    Raises:
        PayloadLostError: it is not.
    """
    if len(data) != reference.size or await _checksum(data) != reference.crc32:
        raise lost(reference, "came back damaged")
    return data


def lost(reference: Reference, how: str) -> PayloadLostError:
    """The error of a payload that cannot be had."""
    what = "The answer" if reference.store == "result" else "The data of the request"
    return PayloadLostError(
        f"{what} ({reference.size} bytes) {how}.", hint="Send the request again, with a new Idempotency-Key."
    )


async def _checksum(data: bytes) -> int:
    if len(data) <= CHUNK_BYTES:
        return zlib.crc32(data)
    return await asyncio.to_thread(zlib.crc32, data)  # lets go of Python's lock


# -- records -----------------------------------------------------------------------------------------------------------


async def check_in(payloads: Payloads, record: Record) -> Record:
    """The record as it travels: data that is too large for that is stored, and the reference takes its place.

    Raises:
        QueueFullError: no room for it.
    """
    store, inline_bytes = _place(record)
    if len(record.data) <= inline_bytes:
        return record
    dataref = await payloads.store(store, record.id, record.data)
    return msgspec.structs.replace(record, data=b"", dataref=dataref)


async def submit(payloads: Payloads, work: Work, publish: Callable[[Work], Awaitable[Submission]]) -> Submission:
    """Publish the work with its data checked in; a payload that no message refers to in the end is dropped.

    ``publish`` raises an error of `sie_sdk.errors` only if the work is surely not queued.

    Raises:
        QueueFullError: no room for the work or for its data.
    """
    carried = await check_in(payloads, work)
    stored = carried.dataref if work.dataref is None else None
    try:
        receipt = await publish(carried)
    except SIEError:  # of any other error nobody knows whether the work is queued all the same
        if stored is not None:
            await payloads.drop(stored)
        raise
    if stored is not None and receipt.duplicate:
        await payloads.drop(stored)
    return receipt


async def redeem(payloads: Payloads, record: Record) -> Record:
    """The record with its data. What was stored stays stored.

    Raises:
        InvalidInputError: the reference is none of ours, or somebody else's.
        PayloadLostError: it was dropped, has expired, or is damaged.
    """
    if record.dataref is None:
        return record
    if not _is_own(record, parse(record.dataref)):
        raise InvalidInputError(f"{record.dataref!r} does not belong to {record.id!r}.", field="dataref")
    return msgspec.structs.replace(record, data=await payloads.load(record.dataref), dataref=None)


def payload_of(work: Work) -> str | None:
    """The reference to drop once ``work`` is settled; None where nothing is stored, or it is not the work's own.

    Work may come from anybody, and may refer to what is somebody else's.
    """
    if work.dataref is None:
        return None
    try:
        reference = parse(work.dataref)
    except InvalidInputError:
        return None
    return work.dataref if _is_own(work, reference) else None


def _is_own(record: Work | Reply, reference: Reference) -> bool:
    if isinstance(record, Reply):
        return reference.store == "result"
    return reference.store != "result" and reference.owner == record.id


def size(record: Work | Reply) -> int:
    """Bytes of the record's data, wherever they are."""
    return len(record.data) if record.dataref is None else parse(record.dataref).size


def _place(record: Work | Reply) -> tuple[Store, int]:
    return ("work", WORK_INLINE_BYTES) if isinstance(record, Work) else ("result", REPLY_INLINE_BYTES)


async def to_dead_letter(payloads: Payloads, dataref: str) -> str:
    """Copy a payload to where dead letters keep theirs; returns the copy's reference. The original stays.

    What is there already, because its work was replayed, is not copied: its own reference is returned.

    Raises:
        PayloadLostError: there is nothing to copy any more; the dead letter has to do without.
    """
    reference = parse(dataref)
    if reference.store == "dead":
        return dataref
    return await payloads.store("dead", reference.owner, await payloads.load(dataref))
