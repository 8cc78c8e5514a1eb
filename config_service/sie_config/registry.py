"""The registry: every model this process knows, in memory, so that resolving a request never costs a network call.

Owns lookup, the lane of a model and the errors of a wrong name. How a name is written is ``model_name``'s; where the
specs come from is ``catalog`` (files) or ``mirror`` (the config bucket).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sie_broker.records import Lane
from sie_config import model_name
from sie_config.model_name import DEFAULT, ModelName
from sie_config.model_spec import ModelSpec
from sie_config.nearest import Nearest
from sie_sdk.errors import BundleConflictError, BundleNotFoundError, ModelNotFoundError, SIEError


def lane_of(spec: ModelSpec) -> Lane:
    """Where the model's work waits."""
    profile = spec.machine_profiles[0] if spec.machine_profiles else "cpu"
    return Lane(pool=spec.pool, bundle=spec.bundle or "default", profile=profile)


class Registry:
    """Model specs by name. ``epoch`` counts the changes that were applied; ``aliases``: see ``aliases``."""

    def __init__(self, specs: Iterable[ModelSpec] = (), aliases: Mapping[str, str] | None = None) -> None:
        self.epoch = 0
        self._hashes: dict[Lane, tuple[int, str]] = {}
        self._specs: dict[str, ModelSpec] = {}
        self._aliases = {alias.lower(): target for alias, target in (aliases or {}).items()}
        self._named: dict[str, ModelSpec] = {}
        """What each name without a bundle leads to; its profile is the spec's ``default_profile``. Empty: not known."""
        self._nearest: Nearest | None = None
        self.replace(specs)

    def replace(self, specs: Iterable[ModelSpec]) -> None:
        """Take a whole snapshot."""
        self._specs = {spec.id.lower(): spec for spec in specs}
        self._changed()

    def put(self, spec: ModelSpec) -> None:
        """Add or change one model."""
        self._specs[spec.id.lower()] = spec
        self._changed()

    def remove(self, model: str) -> None:
        """Forget one model; unknown names are fine."""
        self._specs.pop(model.lower(), None)
        self._changed()

    def _changed(self) -> None:
        self.epoch += 1
        self._named = {}
        self._nearest = None

    def specs(self) -> list[ModelSpec]:
        """All models, by name."""
        return sorted(self._specs.values(), key=lambda spec: spec.id)

    def bundles(self) -> list[str]:
        """Every bundle that serves a model, by name."""
        return sorted({spec.bundle for spec in self._specs.values()})

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

    def resolve(self, name: str, field: str = "model") -> ModelSpec:
        """What ``name`` leads to, with the profile it chose as the spec's ``default_profile``.

        A name is ``[bundle:/]org/model[:profile]`` or an alias; the organisation may be left out where that names one
        model alone. ``field``: what errors call it.

        Raises:
            InvalidInputError: it is no name, or of no profile of the model.
            ModelNotFoundError: no such model; carries up to three near names.
            BundleNotFoundError, BundleConflictError: no such bundle, or not one that serves the model.
        """
        spec = self._named.get(name.lower())  # the usual case: nothing is parsed
        return self._look_up(name, field) if spec is None else spec

    def model(self, name: str, field: str = "model") -> ModelSpec:
        """As `resolve`, but the model as it stands in the catalogue, whatever profile was chosen."""
        return self._specs[self.resolve(name, field).id.lower()]

    def aliases_of(self, model: str) -> list[str]:
        """The aliases that lead to a model, by name; with whatever profile."""
        named = self._index()
        return sorted(alias for alias in self._aliases if alias in named and named[alias].id == model)

    def dangling(self) -> Iterator[str]:
        """The aliases that lead to nothing in the catalogue, each with the reason."""
        named = self._index()
        for alias, target in self._aliases.items():
            if alias not in named:
                try:
                    self._parsed(model_name.parse(target), "model", self._short())
                except SIEError as error:
                    yield f"{alias!r} leads nowhere: {error}"

    def _index(self) -> dict[str, ModelSpec]:
        if not self._named and self._specs:
            whole = self._short() | {spec.id.lower(): spec for spec in self._specs.values()}
            led = dict(self._led(whole))
            self._named = {name: spec for names in (whole, led) for name, spec in _with_profiles(names)}
        return self._named

    def _short(self) -> dict[str, ModelSpec]:
        """The models by their names, and without their organisations where that is one model's alone."""
        short: dict[str, list[ModelSpec]] = {}
        for name, spec in self._specs.items():
            short.setdefault(name.rsplit("/", 1)[-1], []).append(spec)
        return {name: specs[0] for name, specs in short.items() if len(specs) == 1} | self._specs

    def _led(self, whole: Mapping[str, ModelSpec]) -> Iterator[tuple[str, ModelSpec]]:
        for alias, target in self._aliases.items():
            try:
                yield alias, self._parsed(model_name.parse(target), "model", whole)
            except SIEError:
                continue  # `dangling` says which and why

    def _look_up(self, name: str, field: str) -> ModelSpec:
        named = self._index()
        if (spec := named.get(name.lower())) is not None:
            return spec
        return self._parsed(model_name.parse(name, field), field, named)

    def _parsed(self, wanted: ModelName, field: str, named: Mapping[str, ModelSpec]) -> ModelSpec:
        bundles = {bundle.lower(): bundle for bundle in self.bundles()}
        if wanted.bundle and wanted.bundle not in bundles:
            raise BundleNotFoundError(
                f"There is no bundle {wanted.bundle[:64]!r}.",
                field=field,
                hint=f"There is {' and '.join(bundles.values()) or 'none'}; most names need none.",
                bundles=[*bundles.values()],
            )
        if (spec := named.get(wanted.model)) is None:
            raise self._not_found(wanted.model, field)
        if wanted.profile:
            spec = spec.with_profile(wanted.profile, field)
        if wanted.bundle and bundles[wanted.bundle] != spec.bundle:
            raise BundleConflictError(
                f"Bundle {bundles[wanted.bundle]} does not serve {spec.id}.",
                field=field,
                limit=spec.bundle,
                hint=f"Bundle {spec.bundle} does; leave the bundle out to be served by it.",
                compatible_bundles=[spec.bundle],
            )
        return spec

    def _not_found(self, wanted: str, field: str) -> ModelNotFoundError:
        if self._nearest is None:
            # People mistype the name more often than the organisation, so compare with both.
            names = {name: spec.id for name, spec in self._specs.items()}
            names |= {name.rsplit("/", 1)[-1]: spec.id for name, spec in self._specs.items()}
            names |= {alias: alias for alias in self._aliases if alias in self._named}
            self._nearest = Nearest(names)
        nearest = self._nearest.to(wanted)
        hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "GET /v1/models lists what is served."
        return ModelNotFoundError(f"There is no model {wanted[:200]!r}.", field=field, hint=hint, nearest=nearest)


def _with_profiles(names: Mapping[str, ModelSpec]) -> Iterator[tuple[str, ModelSpec]]:
    """Each name as it is and with each profile behind it."""
    for name, spec in names.items():
        yield name, spec
        for profile in (DEFAULT, *spec.profile_names):
            yield f"{name}:{profile}", spec.with_profile(profile)
