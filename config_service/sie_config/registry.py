"""The registry: every model this process knows, in memory, so that resolving a request never costs a network call.

Owns lookup (case-insensitive), the lane of a model and the errors of a wrong name. Where the specs come from is
``catalog`` (files) or ``mirror`` (the config bucket).
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable

import msgspec

from sie_broker.records import Lane
from sie_config.model_spec import ModelSpec
from sie_sdk.errors import ModelNotFoundError


def lane_of(spec: ModelSpec) -> Lane:
    """Where the model's work waits."""
    return Lane(pool=spec.pool, bundle=spec.bundle, profile=spec.profile)


class Registry:
    """Model specs by name. ``epoch`` counts the changes that were applied."""

    def __init__(self, specs: Iterable[ModelSpec] = ()) -> None:
        self.epoch = 0
        self._hashes: dict[Lane, tuple[int, str]] = {}
        self._specs: dict[str, ModelSpec] = {}
        self.replace(specs)

    def replace(self, specs: Iterable[ModelSpec]) -> None:
        """Take a whole snapshot."""
        self._specs = {spec.id.lower(): spec for spec in specs}
        self.epoch += 1

    def put(self, spec: ModelSpec) -> None:
        """Add or change one model."""
        self._specs[spec.id.lower()] = spec
        self.epoch += 1

    def remove(self, model: str) -> None:
        """Forget one model; unknown names are fine."""
        self._specs.pop(model.lower(), None)
        self.epoch += 1

    def specs(self) -> list[ModelSpec]:
        """All models, by name."""
        return sorted(self._specs.values(), key=lambda spec: spec.id)

    def hash_of(self, lane: Lane) -> str:
        """16 hex digits that are the same wherever the lane's specs are, in whatever process and order; empty for none.

        Remembered until the next change.
        """
        epoch, known = self._hashes.get(lane, (-1, ""))
        if epoch != self.epoch:
            specs = [spec for spec in self.specs() if lane_of(spec) == lane]
            written = msgspec.json.encode(specs, order="deterministic")
            known = hashlib.blake2b(written, digest_size=8).hexdigest() if specs else ""
            self._hashes[lane] = (self.epoch, known)
        return known

    def resolve(self, model: str) -> ModelSpec:
        """The spec of ``model``; without its organisation too, when that names one model alone.

        Raises:
            ModelNotFoundError: no such model; carries up to three near names.
        """
        name = model.lower()
        if (spec := self._specs.get(name)) is not None:
            return spec
        if "/" not in name:
            short = [spec for known, spec in self._specs.items() if known.rsplit("/", 1)[-1] == name]
            if len(short) == 1:
                return short[0]
        raise self._not_found(model)

    def _not_found(self, model: str) -> ModelNotFoundError:
        wanted = model.lower()
        # People mistype the name more often than the organisation, so compare with both.
        names = {name: spec.id for name, spec in self._specs.items()}
        names |= {name.rsplit("/", 1)[-1]: spec.id for name, spec in self._specs.items()}
        close = difflib.get_close_matches(wanted, names, n=6, cutoff=0.5)
        nearest = list(dict.fromkeys(names[name] for name in close))[:3]
        hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "GET /v1/models lists what is served."
        return ModelNotFoundError(f"There is no model {model!r}.", field="model", hint=hint, nearest=nearest)
