"""Placement: which bundle serves a model, and on which of the deployed machine profiles. Pure.

Owns the rule, what it says where nothing suits, and the record of a deployment as the config bucket keeps it. A user
chooses neither engine nor hardware; a spec may (``bundle``, ``machine_profiles``). What is known of bundles and
machines stands in ``bundle_spec`` and ``machine_profile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from sie_config.deployment import bundle_spec, machine_profile
from sie_config.deployment.bundle_spec import BundleSpec
from sie_config.deployment.machine_profile import GIB, MachineProfile, Precision
from sie_config.model import structure
from sie_config.model.model_spec import ModelSpec

KEY: Final = "deployment"
"""Of the config bucket: `encode` of what is deployed, beside the models, written by the config service at its start."""

WIDTH: Final[dict[Precision, int]] = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of a weight. ``auto`` of a machine with an accelerator is bfloat16."""


class Deployment(msgspec.Struct, frozen=True):
    """The bundles there are, the machine profiles there are, the cheapest first, and which of these are deployed."""

    bundles: tuple[BundleSpec, ...]
    machine_profiles: tuple[MachineProfile, ...]
    deployed: tuple[str, ...]
    pools: tuple[str, ...] = ()
    """The pools that workers are started in; empty: whichever a spec names."""

    def bundle(self, name: str) -> BundleSpec | None:
        """The bundle of that name, in whatever case; None: there is none."""
        return next((bundle for bundle in self.bundles if bundle.id == name.lower()), None)

    def on(self, bundle: BundleSpec) -> list[MachineProfile]:
        """The machine profiles that a bundle runs on, deployed or not."""
        names = bundle.machine_profiles
        return [profile for profile in self.machine_profiles if not names or profile.name in names]


class Placement(msgspec.Struct, frozen=True):
    """Where a model is served. Without machine profiles it is served nowhere, and ``why`` says for which reason."""

    bundle: str
    machine_profiles: tuple[str, ...] = ()
    planned: bool = False
    """Nothing computes it yet, wherever; ``why`` is what is missing."""
    why: str = ""
    hint: str = ""


def deployment(machine_profiles: str = "cpu", folder: Path = bundle_spec.PACKAGED, pools: str = "") -> Deployment:
    """What these names, separated by commas, mean with the packaged machine profiles and the bundles of ``folder``.

    Raises:
        ConfigurationError: a name is not known, or a file is wrong.
    """
    known = machine_profile.load()
    homes = tuple(filter(None, (name.strip() for name in pools.split(","))))
    return Deployment(bundle_spec.load(folder), known, machine_profile.deployed(machine_profiles, known), homes)


def encode(told: Deployment) -> bytes:
    """The value under `KEY`."""
    return msgspec.json.encode(told)


def decode(value: bytes) -> Deployment:
    """The deployment of an entry.

    Raises:
        msgspec.DecodeError: written by a newer or broken writer.
    """
    return msgspec.json.decode(value, type=Deployment)


def place(spec: ModelSpec, there: Deployment) -> Placement:
    """Where ``spec`` is served: by the bundle it names, else by the preferred one that runs it.

    On the machine profiles it names, in its order, where they are deployed; else on all deployed ones of its bundle
    whose memory holds it, the cheapest first.
    """
    bundle = there.bundle(spec.bundle) if spec.bundle else next(iter(compatible(spec, there.bundles)), None)
    if spec.status == "planned":
        return Placement(bundle.id if bundle else spec.bundle, planned=True, why=spec.blocked_by)
    if bundle is None:
        return _no_bundle(spec, there)
    if bundle.status == "planned":
        return Placement(bundle.id, planned=True, why=bundle.blocked_by)
    if there.pools and spec.pool not in there.pools:
        return _no_worker(spec, bundle, there)
    here = [profile for profile in there.on(bundle) if profile.name in there.deployed]
    if spec.machine_profiles:
        names = {profile.name for profile in here}
        suitable = tuple(dict.fromkeys(name for name in spec.machine_profiles if name in names))
    else:
        suitable = tuple(profile.name for profile in _by_comfort(spec, here))
    return Placement(bundle.id, suitable) if suitable else _nowhere(spec, bundle, there, here)


def compatible(spec: ModelSpec, bundles: Iterable[BundleSpec]) -> list[BundleSpec]:
    """The bundles that run it, as they are preferred: those that serve before the planned, then by priority."""
    return [bundle for bundle in bundle_spec.preferred(bundles) if bundle.runs(spec)]


def served(spec: ModelSpec, place: Placement) -> ModelSpec:
    """The spec as requests see it: where it runs filled in; one that is served nowhere is planned, for that reason."""
    placed = msgspec.structs.replace(spec, bundle=place.bundle, machine_profiles=place.machine_profiles)
    if place.machine_profiles:
        return placed
    return msgspec.structs.replace(placed, status="planned", blocked_by=place.why)


def warnings(spec: ModelSpec, there: Deployment) -> Iterator[str]:
    """What to tell who writes ``spec``: it is valid, and yet not served as they may think."""
    found = place(spec, there)
    if not found.machine_profiles and not found.planned:
        yield f"{found.why[:1].upper()}{found.why[1:]}. {found.hint}".strip()
    elif found.planned and spec.status == "ready":
        yield f"Bundle {found.bundle} is planned: requests are refused until there is {found.why}."
    yield from _unknown_machines(spec, [profile.name for profile in there.machine_profiles])
    if not spec.machine_profiles and not (spec.parameters or spec.bytes) and _counted(found, there):
        yield "Neither parameters nor bytes is given: nothing checks whether a machine's memory holds it."


def unknown_names(spec: ModelSpec) -> Iterator[str]:
    """What to tell where no deployment is at hand, of names that are not those of what comes with this version."""
    bundles = [bundle.id for bundle in bundle_spec.load()]
    if spec.bundle and spec.bundle.lower() not in bundles:
        yield f"bundle: {spec.bundle} is no bundle of this version; {structure.nearest(spec.bundle, bundles)}"
    yield from _unknown_machines(spec, [profile.name for profile in machine_profile.load()])


def _unknown_machines(spec: ModelSpec, known: Sequence[str]) -> Iterator[str]:
    for name in spec.machine_profiles:
        if name not in known:
            yield f"machine_profiles: {name} is no machine profile; {structure.nearest(name, known)}"


def weights_bytes(spec: ModelSpec, profile: MachineProfile) -> int:
    """What its weights take on such a machine; 0: not known."""
    precision = spec.precision if spec.precision != "auto" else profile.precision
    return spec.parameters * WIDTH[precision] if spec.parameters else spec.bytes


def holds(profile: MachineProfile, spec: ModelSpec) -> bool:
    """Whether its accelerator has room for the weights. The host's memory is not counted."""
    return not profile.model_bytes or weights_bytes(spec, profile) <= profile.model_bytes


def _by_comfort(spec: ModelSpec, profiles: Iterable[MachineProfile]) -> list[MachineProfile]:
    """Those that hold it, as they come; those on which it is no pleasure behind the others."""
    holding = [profile for profile in profiles if holds(profile, spec)]
    return sorted(holding, key=lambda profile: not _comfortable(profile, spec))


def _comfortable(profile: MachineProfile, spec: ModelSpec) -> bool:
    # A CPU computes in float32 unless the spec says otherwise.
    wide = spec.parameters * 4 if spec.precision == "auto" else weights_bytes(spec, profile)
    return not profile.comfortable_bytes or max(wide, spec.bytes) <= profile.comfortable_bytes


def _counted(found: Placement, there: Deployment) -> bool:
    return any(profile.model_bytes for profile in there.machine_profiles if profile.name in found.machine_profiles)


def _no_bundle(spec: ModelSpec, there: Deployment) -> Placement:
    names = ", ".join(bundle.id for bundle in there.bundles)
    if spec.bundle:
        return Placement("", why=f"there is no bundle {spec.bundle}", hint=f"There is {names}.")
    does = ", ".join(sorted(bundle_spec.tasks_of(spec)))
    return Placement(
        "",
        why=f"no bundle runs family {spec.family} with {does or 'no task'}",
        hint=f"Where an adapter of that name is installed, its spec says so: `bundle: {there.bundles[0].id}`.",
    )


def _no_worker(spec: ModelSpec, bundle: BundleSpec, there: Deployment) -> Placement:
    return Placement(
        bundle.id,
        why=f"no worker is started in its pool {spec.pool}; deployed: {', '.join(there.pools)}",
        hint="Leave `pool` out of its spec; a request chooses a pool that has a lease by X-SIE-Pool.",
    )


def _nowhere(spec: ModelSpec, bundle: BundleSpec, there: Deployment, here: Sequence[MachineProfile]) -> Placement:
    every = there.on(bundle)
    deployed = ", ".join(map(_room, here)) or f"{', '.join(there.deployed)}, where bundle {bundle.id} does not run"
    if spec.machine_profiles:
        wanted = ", ".join(spec.machine_profiles)
        names = {profile.name for profile in every}
        could = list(dict.fromkeys(name for name in spec.machine_profiles if name in names))
        why = f"no machine profile that its spec lists is deployed: it lists {wanted}; deployed: {deployed}"
    else:
        could = [profile.name for profile in _by_comfort(spec, every)][:3]
        need = max((weights_bytes(spec, profile) for profile in here or every), default=0)
        size = f"its weights need {need / GIB:.1f} GiB; " if need else ""
        why = f"no deployed machine profile holds it: {size}deployed: {deployed}"
    hint = f"Deploy {' or '.join(could)} ({machine_profile.SETTING})." if could else "No known machine profile would."
    return Placement(bundle.id, why=why, hint=hint)


def _room(profile: MachineProfile) -> str:
    return f"{profile.name} with room for {profile.model_bytes / GIB:.1f} GiB" if profile.model_bytes else profile.name
