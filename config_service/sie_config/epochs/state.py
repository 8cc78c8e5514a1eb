"""The state: the whole catalogue as it stands after an epoch, in memory. No input or output.

Owns how a write changes it, what a write of somebody's wish has to be, and the digest that tells two states apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from sie_config.epochs import store
from sie_config.epochs.store import Change, Event, Mark, Stored
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ContentConflictError


class State:
    """Every entry by the lower-case id of its model.

    Args:
        stored: the entries.
        epoch: after which they stand so.
        baseline: the specs that the config service came with.
        unread: the models whose entries only a newer version can read. They are left as they stand.
    """

    def __init__(
        self,
        stored: Iterable[tuple[str, Stored]] = (),
        epoch: int = 0,
        baseline: Mapping[str, ModelSpec] | None = None,
        unread: Iterable[str] = (),
    ) -> None:
        self.epoch = epoch
        self.baseline = {model.lower(): spec for model, spec in (baseline or {}).items()}
        self.stored: dict[str, Stored] = {}
        self.unread = {model.lower() for model in unread}
        self._sum = 0
        for model, each in stored:
            self._put(model.lower(), each)

    @classmethod
    def of(cls, specs: Iterable[ModelSpec]) -> State:
        """A catalogue that nobody writes: all of it is baseline."""
        every = {spec.id: spec for spec in specs}
        return cls(((model, Stored(spec, "baseline", 0)) for model, spec in every.items()), baseline=every)

    @property
    def digest(self) -> str:
        """16 hex digits: the same for the same entries, however they came to stand here."""
        return f"{self._sum:016x}"

    @property
    def mark(self) -> Mark:
        """What a writer leaves under `store.EPOCH`."""
        return Mark(self.epoch, self.digest)

    def specs(self) -> list[ModelSpec]:
        """The models there are, by name."""
        every = (each.spec for each in self.stored.values() if each.spec is not None)
        return sorted(every, key=lambda spec: spec.id)

    def get(self, model: str) -> Stored | None:
        """What stands for a model; a tombstone too."""
        return self.stored.get(model.lower())

    def apply(self, event: Event) -> None:
        """Take in the next write; entries that are of a later one already, as in a snapshot, stay."""
        self.epoch = event.epoch
        self.unread.update(map(str.lower, event.unread))
        for change in event.changes:
            model = change.model.lower()
            present = self.stored.get(model)
            if present is None or present.epoch <= event.epoch:
                self._put(model, change.after)
                self.unread.discard(model)

    def after(self, event: Event) -> Mark:
        """The mark of the state that `apply` would lead to."""
        total = self._sum
        for change in event.changes:
            model = change.model.lower()
            total ^= _weight(model, self.stored.get(model)) ^ _weight(model, change.after)
        return Mark(event.epoch, f"{total:016x}")

    def changes(self, wanted: Mapping[str, ModelSpec | None]) -> tuple[Change, ...]:
        """What a write does that leads to ``wanted``, by model: None is a model that shall not be there.

        A spec that is the baseline's own is the baseline again; a model of the baseline that shall not be there leaves
        a tombstone, so that the next start does not bring it back.

        Raises:
            ContentConflictError: it changes what only a newer version can read.
        """
        for model in wanted:
            self.refuse_unread(model)
        every = (self._change(model, spec) for model, spec in sorted(wanted.items()))
        return tuple(change for change in every if change is not None)

    def seed(self) -> dict[str, ModelSpec | None]:
        """What brings the baseline's part of the catalogue up to date; what was written or deleted stays so.

        A model that was deleted and that this baseline has not may be one of the next.
        """
        wanted: dict[str, ModelSpec | None] = {}
        for model, spec in self.baseline.items():
            present = self.stored.get(model)
            if present is None or (present.origin == "baseline" and present.spec not in (None, spec)):
                wanted[spec.id] = spec
        for model, present in self.stored.items():
            if present.origin == "baseline" and present.spec is not None and model not in self.baseline:
                wanted[present.spec.id] = None
        return {model: spec for model, spec in wanted.items() if model.lower() not in self.unread}

    def refuse_unread(self, model: str) -> None:
        """Raise `ContentConflictError` if what stands for a model is more than this version can read."""
        if model.lower() in self.unread:
            raise ContentConflictError(
                f"{model} was written by a newer version of the config service, and cannot be read by this one.",
                field="model",
                hint="Write it once the newer version runs again.",
                conflicts=[model],
            )

    def _change(self, model: str, spec: ModelSpec | None) -> Change | None:
        before, own = self.stored.get(model.lower()), self.baseline.get(model.lower())
        after: Stored | None
        if spec is not None:
            after = Stored(spec, "baseline" if spec == own else "written", self.epoch + 1)
        else:
            tombstone = before is not None and before.spec is None
            after = Stored(None, "baseline", self.epoch + 1) if own is not None or tombstone else None
        if _same(before, after):
            return None
        return Change(model if spec is None else spec.id, before, after)

    def _put(self, model: str, stored: Stored | None) -> None:
        self._sum ^= _weight(model, self.stored.get(model)) ^ _weight(model, stored)
        if stored is None:
            self.stored.pop(model, None)
        else:
            self.stored[model] = stored


def _same(before: Stored | None, after: Stored | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.spec == after.spec and before.origin == after.origin


def _weight(model: str, stored: Stored | None) -> int:
    """64 bits of an entry; 0 of none. Joined by exclusive or, so that a change costs what it changes."""
    if stored is None:
        return 0
    written = model.encode() + b"\0" + store.encode(stored)
    return int.from_bytes(hashlib.blake2b(written, digest_size=8).digest())
