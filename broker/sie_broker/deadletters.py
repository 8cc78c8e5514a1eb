"""Dead letters: work that nobody is given again, kept with all it came with, and put back when somebody says so.

Owns their form as messages, what their callers are told and what becomes of their jobs. Where they are kept is
``deadletter_stream``, who finds work that used up its deliveries is ``exhausted``; the command line is ``sie dlq``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from sie_broker import claim, jobs, subjects
from sie_broker.claim import Reference
from sie_broker.contract import Bucket, Payloads
from sie_broker.events import envelope
from sie_broker.records import DeadLetter, Reply, Work
from sie_sdk.errors import InvalidInputError, NotFoundError, SIEError, WorkExhaustedError
from sie_sdk.refusals import error_body

PREFIX = "sie-dead-"
REQUEUED = "sie-requeued"
"""The header that counts how often work was queued anew with all its deliveries before it."""
Reason = Literal["exhausted", "malformed", "undeliverable"]
LONGEST_FAULT = 4000
_SENDABLE = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Names of headers that our client sends; others' send more."""


class Place(NamedTuple):
    """Where a work was found, and how often it had been delivered."""

    stream: str
    sequence: int
    deliveries: int


def to_message(letter: DeadLetter) -> dict[str, str]:
    """The headers of the message that keeps ``letter``: the work event's own, and ours before them."""
    own = {
        "id": quote(letter.id, safe="/:"),
        "reason": letter.reason,
        "at": datetime.fromtimestamp(letter.at, UTC).isoformat(),
        "accepted": datetime.fromtimestamp(letter.accepted, UTC).isoformat(),
        "deliveries": str(letter.deliveries),
        "size": str(letter.size),
        "subject": letter.subject,
        "fault": quote(letter.fault[:LONGEST_FAULT], safe="/: ", errors="replace"),
    }
    return {PREFIX + name: value for name, value in own.items()} | letter.headers


def from_message(headers: Mapping[str, str], data: bytes) -> DeadLetter:
    """Read what `to_message` wrote.

    Raises:
        KeyError, ValueError: somebody else wrote it.
    """
    own = {name.removeprefix(PREFIX): value for name, value in headers.items() if name.startswith(PREFIX)}
    return DeadLetter(
        id=unquote(own["id"]),
        reason=msgspec.convert(own["reason"], Reason),
        subject=own["subject"],
        headers=event_headers(headers),
        at=datetime.fromisoformat(own["at"]).timestamp(),
        accepted=datetime.fromisoformat(own["accepted"]).timestamp(),
        deliveries=int(own["deliveries"]),
        size=int(own["size"]),
        fault=unquote(own["fault"]),
        data=data,
    )


def letter_of(
    subject: str, headers: Mapping[str, str], data: bytes, *, place: Place, accepted: float, now: float
) -> DeadLetter:
    """The dead letter of a message that was found in its queue; the reason is whether it can be read."""
    own = event_headers(headers)
    try:
        envelope.to_work(own, data)
    except ValueError as broken:
        fault = str(broken)
    else:
        fault = ""
    return DeadLetter(
        id=unquote(own["ce-id"]) if _is_named(own) else f"{place.stream}-{place.sequence}",
        reason="malformed" if fault else "exhausted",
        subject=subject,
        headers=own,
        at=now,
        accepted=accepted,
        deliveries=place.deliveries,
        size=len(data) if (apart := _reference(own)) is None else apart.size,
        fault=fault,
        data=data,
    )


def requeues(headers: Mapping[str, str]) -> int:
    """How often the work was queued anew."""
    times = headers.get(REQUEUED, "0")
    return int(times) if times.isdecimal() and len(times) < 10 else 0


def event_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that an event came with: neither the server's nor ours, nor any that cannot be sent on."""
    return {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith(("nats-", PREFIX)) and _SENDABLE.fullmatch(name)
    }


def refusal(letter: DeadLetter) -> Reply | None:
    """What the caller is told; None when it was no work, or nobody is there to be told."""
    if not _is_named(letter.headers) or not subjects.is_work(letter.subject):
        return None
    error: SIEError = InvalidInputError(f"This is no work event: {letter.fault}.", hint="docs/events.md has the form.")
    if letter.reason == "exhausted":
        error = WorkExhaustedError(
            f"Given up after {letter.deliveries} deliveries: no worker finished this request.",
            hint=f"It is kept: `sie dlq show {letter.id}` shows it, `sie dlq replay {letter.id}` tries it again.",
            deliveries=letter.deliveries,
        )
    cause = letter.headers.get("ce-causationid")
    return Reply(
        id=letter.id, data=error_body(error), status=error.status, cause=None if cause is None else unquote(cause)
    )


def work_of(letter: DeadLetter) -> Work | None:
    """The work it was, without its deadline, which has passed; None when it cannot be read."""
    try:
        return envelope.to_work(replayed(letter.headers), letter.data)
    except ValueError:
        return None


def replayed(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of the work that a replay queues."""
    return {name: value for name, value in headers.items() if name not in ("ce-expirytime", REQUEUED)}


def _is_named(headers: Mapping[str, str]) -> bool:
    return 0 < len(headers.get("ce-id", "")) <= envelope.LONGEST_NAME


def _reference(headers: Mapping[str, str]) -> Reference | None:
    """What the event's data is stored under, if it did not come with it."""
    try:
        return claim.parse(unquote(headers["ce-dataref"])) if "ce-dataref" in headers else None
    except InvalidInputError:
        return None


def kept_payload(letter: DeadLetter) -> str | None:
    """The reference to the letter's data, where dead letters keep what is too large for a message; it goes with it."""
    reference = _reference(letter.headers)
    return str(reference) if reference is not None and reference.store == "dead" else None


def queued_payload(letter: DeadLetter) -> str | None:
    """The same, where its work had it; nobody needs it there once the letter is written."""
    reference = _reference(letter.headers)
    own = reference is not None and (reference.store, reference.owner) == ("work", letter.id)
    return str(reference) if own else None


async def with_payload(payloads: Payloads, letter: DeadLetter) -> DeadLetter:
    """The letter of work with its data where dead letters keep theirs; the original stays where it was.

    Raises:
        PayloadLostError: there is none any more.
    """
    work = work_of(letter)
    dataref = None if work is None else claim.payload_of(work)
    if dataref is None:
        return letter
    copied = envelope.escape(await claim.to_dead_letter(payloads, dataref))
    return msgspec.structs.replace(letter, headers=letter.headers | {"ce-dataref": copied})


async def opened(payloads: Payloads, letter: DeadLetter) -> DeadLetter:
    """The letter with its data, wherever that is kept."""
    dataref = kept_payload(letter)
    return letter if dataref is None else msgspec.structs.replace(letter, data=await payloads.load(dataref))


async def reopen(bucket: Bucket, work: Work) -> Callable[[], Awaitable[None]]:
    """Make the work's job one that is being worked on again; call what is returned when it is queued.

    Only then the error that was kept as its result goes, and only if no new result has taken its place.
    """
    job = await jobs.find(bucket, work.id) or jobs.job_of(work)
    await jobs.accept(bucket, jobs.on_its_own(job))  # it is queued somewhere else from here on
    revision = await jobs.result_revision(bucket, work.id)

    async def forget() -> None:
        await jobs.forget_result(bucket, work.id, revision)

    return forget


def unknown(letter_id: str) -> NotFoundError:
    """The error for an id that no dead letter has."""
    return NotFoundError(
        f"There is no dead letter {letter_id!r}.",
        field="id",
        hint="`sie dlq list` shows all; they are kept for 7 days.",
    )
