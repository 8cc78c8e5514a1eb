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

log = logging.getLogger("sie.config")

MODELS, OUTBOX, REQUESTS = "models.", "outbox.", "requests."
EPOCH, LEASE = "epoch", "lease"

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


class Event(msgspec.Struct, frozen=True):
    """One write: what stands in the outbox under its epoch."""

    epoch: int
    at: float
    """Seconds since the epoch of Unix."""
    actor: str
    """Who wrote, as they said."""
    kind: Kind
    changes: tuple[Change, ...]
    note: str = ""
    id: str = ""
    """Of this attempt: a writer that was not answered finds out whether what stands there is its own."""


class Mark(msgspec.Struct, frozen=True):
    """The last committed epoch, and the digest of all entries as they stand then."""

    epoch: int
    digest: str


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
    kind: Kind
    changes: list[_Change]
    note: str = ""
    id: str = ""


_encoder = msgspec.json.Encoder()
_stored = msgspec.json.Decoder(Stored)
_perhaps = msgspec.json.Decoder(Stored | None)
_event = msgspec.json.Decoder(_Event)
_mark = msgspec.json.Decoder(Mark)
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


def encode(record: Stored | Event | Mark | Recorded) -> bytes:
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
    """The write of an outbox entry, without the changes that only a newer version can read.

    Raises:
        msgspec.DecodeError: it is no event.
    """
    event = _event.decode(value)
    changes = []
    for each in event.changes:
        try:
            before, after = (_perhaps.decode(raw) for raw in (each.before, each.after))
        except msgspec.DecodeError as error:
            log.warning("skipped %s of epoch %d: %s", each.model, event.epoch, error)
        else:
            changes.append(Change(each.model, before, after))
    return Event(event.epoch, event.at, event.actor, event.kind, tuple(changes), event.note, event.id)


def read_mark(value: bytes) -> Mark:
    """The mark under `EPOCH`; errors as `read_event`."""
    return _mark.decode(value)


def read_recorded(value: bytes) -> Recorded:
    """The answer under a request's key; errors as `read_event`."""
    return _recorded.decode(value)
