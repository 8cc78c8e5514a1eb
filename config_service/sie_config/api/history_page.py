"""The history of the catalogue as it is told: a page of writes, and one write with whole specs. Pure.

Owns these records. What is kept of a write, and how long, is ``writer``'s.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sie_config.api import answers
from sie_config.api.answers import ModelChange
from sie_config.epochs.store import Change, Event, Stored
from sie_config.model import model_spec
from sie_config.model.diff import FieldChange


class Write(msgspec.Struct, frozen=True):
    """One write. ``at``: seconds since the epoch of Unix; ``models``: those it changed."""

    epoch: int
    at: float
    actor: str
    kind: str
    note: str
    models: list[str]
    changes: list[ModelChange]


class Page(msgspec.Struct, frozen=True):
    """Writes, the newest first. ``next_before``: what ``before`` leads to the next page; null on the last."""

    events: list[Write]
    next_before: int | None


class WholeChange(msgspec.Struct, frozen=True):
    """One model of a write with the whole spec before and after, as written; null where there is none."""

    model: str
    action: str
    fields: list[FieldChange]
    etag_before: str | None
    etag_after: str | None
    origin_before: str | None
    origin_after: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class WholeWrite(msgspec.Struct, frozen=True):
    """One write with all of what it changed."""

    epoch: int
    at: float
    actor: str
    kind: str
    note: str
    models: list[str]
    changes: list[WholeChange]


def page(events: list[Event], limit: int) -> Page:
    """The page of these events, of which ``limit`` were asked for."""
    writes = [
        Write(
            each.epoch,
            each.at,
            each.actor,
            each.kind,
            each.note,
            [change.model for change in each.changes],
            answers.changes(each.changes),
        )
        for each in events
    ]
    more = len(events) == limit and events[-1].epoch > 1
    return Page(writes, events[-1].epoch if more else None)


def whole(event: Event) -> WholeWrite:
    """One event, whole."""
    rows = zip(event.changes, answers.changes(event.changes), strict=True)
    return WholeWrite(
        event.epoch,
        event.at,
        event.actor,
        event.kind,
        event.note,
        [change.model for change in event.changes],
        [_whole(change, told) for change, told in rows],
    )


def _whole(change: Change, told: ModelChange) -> WholeChange:
    return WholeChange(
        **msgspec.structs.asdict(told),
        origin_before=None if change.before is None else change.before.origin,
        origin_after=None if change.after is None else change.after.origin,
        before=_document(change.before),
        after=_document(change.after),
    )


def _document(stored: Stored | None) -> dict[str, Any] | None:
    return None if stored is None or stored.spec is None else model_spec.document(stored.spec)
