"""What a write answers: what it changed, or would change, in words for people and for other services. Pure.

Owns the records and how they come from an event. The words of errors stand with what raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from sie_config.epochs.store import Change, Event, Stored
from sie_config.model import diff, model_spec
from sie_config.model.diff import FieldChange
from sie_config.model.model_spec import ModelSpec


class Told(NamedTuple):
    """What an answer says beside the change itself."""

    router_id: str
    """Which config service answers."""
    bundles: Callable[[ModelSpec], Sequence[str]]
    """Those that can serve a model."""
    warnings: Callable[[ModelSpec], Iterable[str]]
    """What is valid and yet perhaps not meant."""


class ModelChange(msgspec.Struct, frozen=True):
    """One model of a write, before and after. An etag is null where there is no model."""

    model: str
    action: Literal["added", "changed", "deleted"]
    fields: list[FieldChange]
    etag_before: str | None
    etag_after: str | None


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What a POST did. ``epoch`` is the one it made, or as before, if it changed nothing or was a dry run."""

    model_id: str
    created_profiles: list[str]
    existing_profiles_skipped: list[str]
    warnings: list[str]
    routable_bundles_by_profile: dict[str, list[str]]
    router_id: str
    epoch: int
    etag: str
    changes: list[ModelChange]
    dry_run: bool


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """What a PUT or PATCH did. ``replaced``: there was such a model, and it is another now."""

    model_id: str
    replaced: bool
    unchanged: bool
    affected_bundles: list[str]
    warnings: list[str]
    router_id: str
    epoch: int
    etag: str
    changes: list[ModelChange]
    dry_run: bool


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What a DELETE did. ``fallback``: the model is there as the config service came with it; its ``etag`` then."""

    model_id: str
    deleted: bool
    unchanged: bool
    fallback: bool
    affected_bundles: list[str]
    router_id: str
    epoch: int
    etag: str | None
    changes: list[ModelChange]
    dry_run: bool


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What an apply or a rollback did, by model."""

    created: list[str]
    changed: list[str]
    deleted: list[str]
    unchanged: list[str]
    affected_bundles: list[str]
    warnings: list[str]
    router_id: str
    epoch: int
    changes: list[ModelChange]
    dry_run: bool


class Seen(NamedTuple):
    """What an edit met: the epoch, and what stood for its model, if it was of one."""

    epoch: int
    stored: Stored | None


class Done(NamedTuple):
    """A write that was made, or was only tried, and what it met. Without an ``event`` nothing had to change."""

    seen: Seen
    event: Event | None
    dry_run: bool

    @property
    def before(self) -> ModelSpec | None:
        """The model that the write was of, as it met it."""
        return _spec(self.seen.stored)

    @property
    def epoch(self) -> int:
        """The epoch of the catalogue now."""
        return self.seen.epoch if self.dry_run or self.event is None else self.event.epoch

    @property
    def changes(self) -> tuple[Change, ...]:
        """What changed."""
        return () if self.event is None else self.event.changes

    @property
    def left(self) -> ModelSpec | None:
        """The model that the write was of, as it is now."""
        return _spec(self.changes[0].after) if self.changes else self.before


def appended(done: Done, document: Mapping[str, Any], told: Told) -> tuple[int, Appended]:
    """Of a POST of ``document``, with its status: 201 for a new model."""
    before, spec = done.before, done.left
    assert spec is not None
    known = [] if before is None else before.profile_names
    asked = document.get("profiles")
    answer = Appended(
        model_id=spec.id,
        created_profiles=[name for name in spec.profile_names if name not in known],
        existing_profiles_skipped=[name for name in known if name in (asked or ())],
        warnings=_warnings(done, [spec], told),
        routable_bundles_by_profile={name: list(told.bundles(spec)) for name in spec.profile_names},
        router_id=told.router_id,
        epoch=done.epoch,
        etag=model_spec.etag(spec),
        changes=changes(done.changes),
        dry_run=done.dry_run,
    )
    return (201 if before is None and not done.dry_run else 200), answer


def replaced(done: Done, told: Told) -> tuple[int, Replaced]:
    """Of a PUT or PATCH, with its status: 201 for a new model."""
    before, spec = done.before, done.left
    assert spec is not None
    answer = Replaced(
        model_id=spec.id,
        replaced=before is not None and bool(done.changes),
        unchanged=not done.changes,
        affected_bundles=_affected(done, told),
        warnings=_warnings(done, [spec], told),
        router_id=told.router_id,
        epoch=done.epoch,
        etag=model_spec.etag(spec),
        changes=changes(done.changes),
        dry_run=done.dry_run,
    )
    return (201 if before is None and not done.dry_run else 200), answer


def deleted(done: Done, model: str, told: Told) -> tuple[int, Deleted]:
    """Of a DELETE, with its status."""
    spec = done.left
    return 200, Deleted(
        model_id=next((each.model for each in done.changes), model),
        deleted=bool(done.changes),
        unchanged=not done.changes,
        fallback=spec is not None,
        affected_bundles=_affected(done, told),
        router_id=told.router_id,
        epoch=done.epoch,
        etag=None if spec is None else model_spec.etag(spec),
        changes=changes(done.changes),
        dry_run=done.dry_run,
    )


def applied(done: Done, models: Iterable[str], told: Told) -> tuple[int, Applied]:
    """Of an apply of ``models``, with its status."""
    every = changes(done.changes)
    actions = {each.model.lower(): each.action for each in every}
    after = [spec for each in done.changes if (spec := _spec(each.after)) is not None]
    return 200, Applied(
        created=[each.model for each in every if each.action == "added"],
        changed=[each.model for each in every if each.action == "changed"],
        deleted=[each.model for each in every if each.action == "deleted"],
        unchanged=sorted(model for model in models if model.lower() not in actions),
        affected_bundles=_affected(done, told),
        warnings=_warnings(done, after, told),
        router_id=told.router_id,
        epoch=done.epoch,
        changes=every,
        dry_run=done.dry_run,
    )


def changes(every: Iterable[Change]) -> list[ModelChange]:
    """Each change of an event with what differs."""
    return [_change(each) for each in every]


def _change(change: Change) -> ModelChange:
    before, after = _spec(change.before), _spec(change.after)
    return ModelChange(
        change.model,
        "added" if before is None else "deleted" if after is None else "changed",
        diff.fields(_document(before), _document(after)),
        None if before is None else model_spec.etag(before),
        None if after is None else model_spec.etag(after),
    )


def _document(spec: ModelSpec | None) -> dict[str, object]:
    return {} if spec is None else model_spec.document(spec)


def _spec(stored: Stored | None) -> ModelSpec | None:
    return None if stored is None else stored.spec


def _affected(done: Done, told: Told) -> list[str]:
    specs = [spec for each in done.changes for stored in (each.before, each.after) if (spec := _spec(stored))]
    return sorted({bundle for spec in specs for bundle in told.bundles(spec)})


def _warnings(done: Done, specs: Iterable[ModelSpec], told: Told) -> list[str]:
    several = len(specs := list(specs)) > 1
    found = [f"{spec.id}: {warning}" if several else warning for spec in specs for warning in told.warnings(spec)]
    for change in done.changes:
        before, after = _spec(change.before), _spec(change.after)
        if before is not None and after is not None and before.owner not in ("", after.owner):
            found.append(f"{after.id} was {before.owner}'s, and is {after.owner or 'nobody'}'s now.")
    return found
