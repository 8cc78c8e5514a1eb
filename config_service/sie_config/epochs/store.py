"""The store: the catalogue as entries of the config bucket, and its history beside it.

Owns the keys, the records and their bytes. Who writes is ``writer``, who reads is ``mirror``; what a set of entries
means in memory is ``state``.
"""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

from sie_broker.subjects import token
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.config")

MODELS, OUTBOX, REQUESTS = "models.", "outbox.", "requests."
EPOCH, LEASE, BASELINE = "epoch", "lease", "baseline"

Origin = Literal["baseline", "written"]
Kind = Literal["seed", "append", "put", "patch", "delete", "apply", "rollback"]


class Stored(msgspec.Struct, frozen=True):
    """What stands under a model's key. Without a spec it says that the baseline's was deleted (a tombstone)."""

    spec: ModelSpec | None
    origin: Origin
    """``baseline``: from the files of the config service; ``written``: by the API."""
    epoch: int
    """Of its last change."""


class Change(msgspec.Struct, frozen=True):
    """One model before and after a write; None: nothing stood, or stands, under its key."""

    model: str
    before: Stored | None
    after: Stored | None


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One write: what stands in the outbox under its epoch."""

    epoch: int
    at: float
    """Seconds since the epoch of Unix."""
    actor: str
    """Who wrote, as they said."""
    kind: str
    """A `Kind`, or one that only a newer version knows."""
    changes: tuple[Change, ...]
    note: str = ""
    id: str = ""
    """Of this attempt: a writer that was not answered finds out whether what stands there is its own."""
    unread: tuple[str, ...] = ()
    """The models whose changes only a newer version can read; found when it is read, and never stored."""


class Mark(msgspec.Struct, frozen=True):
    """The last committed epoch, and the digest of all entries as they stand then."""

    epoch: int
    digest: str


class Baseline(msgspec.Struct, frozen=True):
    """Whose baseline the catalogue has: its digest, and when the process that brought it began, by its own clock."""

    digest: str
    began: float


class Recorded(msgspec.Struct, frozen=True):
    """What a request with an Idempotency-Key was answered. ``digest``: of what was asked."""

    digest: str
    status: int
    body: bytes
    epoch: int


class _Change(msgspec.Struct, frozen=True):
    model: str
    before: msgspec.Raw
    after: msgspec.Raw


class _Event(msgspec.Struct, frozen=True):
    epoch: int
    at: float
    actor: str
    kind: str
    changes: list[_Change]
    note: str = ""
    id: str = ""


_encoder = msgspec.json.Encoder()
_stored = msgspec.json.Decoder(Stored)
_perhaps = msgspec.json.Decoder(Stored | None)
_event = msgspec.json.Decoder(_Event)
_mark = msgspec.json.Decoder(Mark)
_baseline = msgspec.json.Decoder(Baseline)
_recorded = msgspec.json.Decoder(Recorded)


def model_key(model: str) -> str:
    """The key of a model; ids that differ in case only are one model."""
    return MODELS + token(model.lower())


def event_key(epoch: int) -> str:
    """The key of the write that made this epoch."""
    return f"{OUTBOX}{epoch}"


def request_key(idempotency_key: str) -> str:
    """The key of what an Idempotency-Key was answered."""
    return REQUESTS + token(idempotency_key)


def encode(record: Stored | Event | Mark | Baseline | Recorded) -> bytes:
    """A record as it is kept."""
    return _encoder.encode(record)


def read_stored(key: str, value: bytes) -> Stored | None:
    """What stands under a model's key; None, and a warning, when a newer or broken writer wrote it."""
    try:
        return _stored.decode(value)
    except msgspec.DecodeError as error:
        log.warning("skipped %s: %s", key, error)
        return None


def read_event(value: bytes) -> Event:
    """The write of an outbox entry; of changes that only a newer version can read, which models they are of.

    Raises:
        msgspec.DecodeError: it is no event.
    """
    event = _event.decode(value)
    changes, unread = [], []
    for each in event.changes:
        try:
            before, after = (_perhaps.decode(raw) for raw in (each.before, each.after))
        except msgspec.DecodeError as error:
            log.warning("skipped %s of epoch %d: %s", each.model, event.epoch, error)
            unread.append(each.model)
        else:
            changes.append(Change(each.model, before, after))
    return Event(event.epoch, event.at, event.actor, event.kind, tuple(changes), event.note, event.id, tuple(unread))


def read_mark(value: bytes) -> Mark:
    """The mark under `EPOCH`.

    Raises:
        QueueUnavailableError: it is none: a newer writer, or a broken one, wrote it.
    """
    try:
        return _mark.decode(value)
    except msgspec.DecodeError as fault:
        raise QueueUnavailableError(f"The mark of the catalogue cannot be read: {fault}.") from fault


def read_baseline(value: bytes) -> Baseline | None:
    """What stands under `BASELINE`; None, and a warning, if that cannot be read."""
    try:
        return _baseline.decode(value)
    except msgspec.DecodeError as fault:
        log.warning("whose baseline the catalogue has cannot be read: %s", fault)
        return None


def read_recorded(value: bytes) -> Recorded:
    """The answer under a request's key; errors as `read_mark`."""
    try:
        return _recorded.decode(value)
    except msgspec.DecodeError as fault:
        raise QueueUnavailableError(f"The answer to this Idempotency-Key cannot be read: {fault}.") from fault
