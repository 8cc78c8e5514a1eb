"""The registry: every model this process knows, in memory, so that resolving a request never costs a network call.

Owns lookup, the lanes of a model and the errors of a wrong name. How a name is written is ``model_name``'s, where a
model is served is decided by ``placement``; specs come from ``catalog`` (files) or ``mirror`` (the config bucket).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec

from sie_broker.records import Lane
from sie_config import model_name
from sie_config.deployment import placement
from sie_config.deployment.placement import Deployment
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from sie_config.model_name import ModelName
from sie_config.nearest import Nearest
from sie_config.past_specs import PastSpecs
from sie_sdk.errors import (
    BundleConflictError,
    BundleNotFoundError,
    ModelNotFoundError,
    ModelPlannedError,
    ModelUnplacedError,
    SIEError,
)

_id = attrgetter("id")
DEFAULT = "default"
"""The bundle of models, as long as nobody has told what is deployed."""


def lane_of(spec: ModelSpec) -> Lane:
    """Where the model's work waits when nobody chooses the machine."""
    profile = spec.machine_profiles[0] if spec.machine_profiles else "cpu"
    return Lane(pool=spec.pool, bundle=spec.bundle or DEFAULT, profile=profile)


def lanes_of(spec: ModelSpec) -> list[Lane]:
    """Every lane that serves the model, its own first; none for a planned one."""
    if spec.status == "planned":
        return []
    own = lane_of(spec)
    return [own, *(msgspec.structs.replace(own, profile=name) for name in spec.machine_profiles[1:])]


class Registry:
    """Model specs by name. ``epoch`` counts the changes that were applied; ``aliases``: see ``aliases``.

    A change costs the same whatever the catalogue's size: what a name leads to is found when it is asked for, and
    remembered until the next change. ``clock``: seconds, steady.

    All but `written` know specs as they are served: with the bundle and the machine profiles that ``deployment`` places
    them on. None: nobody has told what is deployed, and a spec is served where it says, else by ``default`` on ``cpu``.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec] = (),
        aliases: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        deployment: Deployment | None = None,
    ) -> None:
        self.epoch = 0
        self.deployment = deployment
        self._aliases = {alias.lower(): target for alias, target in (aliases or {}).items()}
        self._written: dict[str, ModelSpec] = {}
        self._specs: dict[str, ModelSpec] = {}
        """By id, in lower case; so are the etags, and the ids by their names without organisations."""
        self._etags: dict[str, str] = {}
        self._short: dict[str, list[str]] = {}
        self._sorted: list[ModelSpec] = []
        self._bundles: Counter[str] = Counter()
        self._sums: dict[Lane, tuple[int, int]] = {}
        """Of each lane, how many specs it has, and the sum of their etags."""
        self._past = PastSpecs(clock)
        self._named: dict[str, ModelSpec] = {}
        """What names led to since the last change."""
        self._led: dict[str, list[str]] | None = None
        """The aliases by model; None: not known."""
        self._nearest = Nearest({})
        self._nearest_outdated = True
        self.replace(specs)

    def replace(self, specs: Iterable[ModelSpec]) -> None:
        """Take a whole snapshot."""
        wanted = {spec.id.lower(): spec for spec in specs}
        gone = self._specs.keys() - wanted.keys()
        for key in gone:
            self._drop(key)
        taken = [self._take(key, spec) for key, spec in wanted.items()]
        if gone or any(taken):
            self._changed()

    def deploy(self, deployment: Deployment) -> None:
        """Place every model anew: what is deployed has changed, or is known now."""
        if deployment == self.deployment:
            return
        self.deployment = deployment
        written = list(self._written.values())
        for key in [*self._written]:
            self._drop(key)
        self.replace(written)

    def placed(self, spec: ModelSpec) -> ModelSpec:
        """A spec as requests would see it: with where it is served, or planned if that is nowhere."""
        if self.deployment is not None:
            return placement.served(spec, placement.place(spec, self.deployment))
        return spec if spec.bundle else msgspec.structs.replace(spec, bundle=DEFAULT)

    def put(self, spec: ModelSpec) -> None:
        """Add or change one model."""
        if self._take(spec.id.lower(), spec):
            self._changed()

    def remove(self, model: str) -> None:
        """Forget one model; unknown names are fine."""
        if (key := model.lower()) in self._specs:
            self._drop(key)
            self._changed()

    def _take(self, key: str, spec: ModelSpec) -> bool:
        """Whether that changed anything: else the spec that is there stays."""
        etag = model_spec.etag(spec)
        if key in self._specs:
            if self._etags[key] == etag:
                return False
            self._drop(key)
        self._written[key], self._etags[key] = spec, etag
        self._specs[key] = spec = self.placed(spec)
        self._short.setdefault(_short_of(key), []).append(key)
        self._sorted.insert(bisect_left(self._sorted, spec.id, key=_id), spec)
        self._bundles[spec.bundle] += 1
        for lane in lanes_of(spec):
            self._count(lane, 1, int(etag, 16))
        return True

    def _drop(self, key: str) -> None:
        spec, etag = self._specs.pop(key), self._etags.pop(key)
        del self._written[key]
        self._short[_short_of(key)].remove(key)
        if not self._short[_short_of(key)]:
            del self._short[_short_of(key)]
        del self._sorted[bisect_left(self._sorted, spec.id, key=_id)]
        self._bundles[spec.bundle] -= 1
        if not self._bundles[spec.bundle]:
            del self._bundles[spec.bundle]
        for lane in (lanes := lanes_of(spec)):
            self._count(lane, -1, -int(etag, 16))
        self._past.add(key, etag, spec, lanes)

    def _count(self, lane: Lane, specs: int, etag: int) -> None:
        count, total = self._sums.get(lane, (0, 0))
        self._sums[lane] = count + specs, (total + etag) % (1 << 64)
        if not self._sums[lane][0]:
            del self._sums[lane]

    def _changed(self) -> None:
        self.epoch += 1
        self._named = {}
        self._led = None
        self._nearest_outdated = True

    def specs(self) -> list[ModelSpec]:
        """All models, by name."""
        return self._sorted.copy()

    def queues(self) -> Iterator[tuple[Lane, str]]:
        """The queues that the catalogue needs: where each model that is ready is waited for."""
        return ((lane, spec.id) for spec in self._sorted for lane in lanes_of(spec))

    def serves(self, model: str, lane: Lane) -> bool:
        """Whether the lane serves the model, by its id, as it stands."""
        spec = self._specs.get(model.lower())
        return spec is not None and lane in lanes_of(spec)

    def waits_in(self, model: str, lane: Lane) -> bool:
        """Whether work for the model, by its id, may wait in this lane: as it stands, or stood a short while ago."""
        return self.serves(model, lane) or self._past.waits_in(model.lower(), lane)

    def bundles(self) -> list[str]:
        """Every bundle that serves a model, by name."""
        return sorted(filter(None, self._bundles))

    def hash_of(self, lane: Lane) -> str:
        """16 hex digits that are the same wherever the lane's specs are, in whatever process and order; empty for none.

        The sum of their etags.
        """
        return f"{self._sums[lane][1]:016x}" if lane in self._sums else ""

    def etag(self, model: str) -> str:
        """The etag of a model as it stands, by its id; empty when there is none."""
        return self._etags.get(model.lower(), "")

    def version(self, model: str, etag: str) -> ModelSpec | None:
        """The model as it stands, or stood in the last ten minutes, by its id and etag; None when it is not known."""
        key = model.lower()
        return self._specs[key] if self._etags.get(key) == etag else self._past.find(key, etag)

    def resolve(self, name: str, field: str = "model") -> ModelSpec:
        """What ``name`` leads to, with the profile it chose as the spec's ``default_profile``.

        A name is ``[bundle:/]org/model[:profile]`` or an alias; the organisation may be left out where that names one
        model alone. ``field``: what errors call it.

        Raises:
            InvalidInputError: it is no name, or of no profile of the model.
            ModelNotFoundError: no such model; carries up to three near names.
            BundleNotFoundError, BundleConflictError: no such bundle, or not one that serves the model.
            ModelPlannedError: nothing computes it yet.
            ModelUnplacedError: nothing that is deployed runs or holds it.
        """
        spec = self._look_up(name, field)
        if spec.status == "planned":
            raise self.refusal(spec, field)
        return spec

    def model(self, name: str, field: str = "model") -> ModelSpec:
        """The model of a name as `resolve` takes it, whatever profile was chosen, and served or not."""
        return self._specs[self._look_up(name, field).id.lower()]

    def written(self, name: str, field: str = "model") -> ModelSpec:
        """As `model`, but the spec as it was written: where it runs only where that says so."""
        return self._written[self._look_up(name, field).id.lower()]

    def _look_up(self, name: str, field: str) -> ModelSpec:
        spec = self._named.get(lower := name.lower())  # the usual case: nothing is parsed
        if spec is None:
            spec = self._named[lower] = self._asked(model_name.parse(name, field), field, self._find)
        return spec

    def refusal(self, spec: ModelSpec, field: str = "model") -> SIEError:
        """What requests for a model get that is not served; ``field``: see `resolve`."""
        if self.deployment is not None:
            place = placement.place(self._written[spec.id.lower()], self.deployment)
            if not place.planned:
                told = f"{spec.id} is not served: {place.why}."
                return ModelUnplacedError(told, field=field, hint=place.hint, model=spec.id)
        return ModelPlannedError(
            f"{spec.id} is planned: it waits for {spec.blocked_by or 'what computes it'}.",
            field=field,
            hint="GET /v1/models lists what is served.",
            model=spec.id,
            blocked_by=spec.blocked_by,
        )

    def aliases_of(self, model: str) -> list[str]:
        """The aliases that lead to a model, by name; with whatever profile."""
        if self._led is None:
            self._led = {}
            for alias in sorted(self._aliases):
                if (spec := self._behind(alias)) is not None:
                    self._led.setdefault(spec.id, []).append(alias)
        return self._led.get(model, []).copy()

    def dangling(self) -> Iterator[str]:
        """The aliases that lead to nothing in the catalogue, each with the reason."""
        for alias, target in self._aliases.items():
            if self._behind(alias) is None:
                try:
                    self._asked(model_name.parse(target), "model", self._whole)
                except SIEError as error:
                    yield f"{alias!r} leads nowhere: {error}"

    def _whole(self, name: str) -> ModelSpec | None:
        """The model of a name in lower case, or of one without its organisation where that is one model's alone."""
        if (spec := self._specs.get(name)) is not None:
            return spec
        keys = self._short.get(name, ())
        return self._specs[keys[0]] if len(keys) == 1 else None

    def _find(self, name: str) -> ModelSpec | None:
        """As `_whole`, or what an alias leads to: that comes first."""
        led = self._behind(name) if name in self._aliases else None
        return self._whole(name) if led is None else led

    def _behind(self, alias: str) -> ModelSpec | None:
        try:
            return self._chosen(model_name.parse(self._aliases[alias]), "model", self._whole)
        except SIEError:
            return None  # `dangling` says why

    def _asked(self, wanted: ModelName, field: str, find: Callable[[str], ModelSpec | None]) -> ModelSpec:
        if (spec := self._chosen(wanted, field, find)) is None:
            raise self._not_found(wanted.model, field)
        return spec

    def _chosen(self, wanted: ModelName, field: str, find: Callable[[str], ModelSpec | None]) -> ModelSpec | None:
        bundles = {bundle.lower(): bundle for bundle in self.bundles()} if wanted.bundle else {}
        if wanted.bundle and wanted.bundle not in bundles:
            raise BundleNotFoundError(
                f"There is no bundle {wanted.bundle[:64]!r}.",
                field=field,
                hint=f"There is {' and '.join(bundles.values()) or 'none'}; most names need none.",
                bundles=[*bundles.values()],
            )
        if (spec := find(wanted.model)) is None:
            return None
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
        if self._nearest_outdated:
            # People mistype the name more often than the organisation, so compare with both. A short name that several
            # models have stands for the first of them.
            names = {_short_of(spec.id.lower()): spec.id for spec in reversed(self._sorted)}
            names |= {key: spec.id for key, spec in self._specs.items()}
            names |= {alias: alias for alias in self._aliases if self._behind(alias) is not None}
            self._nearest.update(names)
            self._nearest_outdated = False
        nearest = self._nearest.to(wanted)
        hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "GET /v1/models lists what is served."
        return ModelNotFoundError(f"There is no model {wanted[:200]!r}.", field=field, hint=hint, nearest=nearest)


def _short_of(key: str) -> str:
    return key.rsplit("/", 1)[-1]
