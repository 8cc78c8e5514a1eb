"""Bundles: what serves models, as data: one YAML file per bundle, read and validated together.

Owns the record and its validation. Which bundle serves a model is decided by ``placement``; what runs is
``sie_bundle``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sie_config.model import faults
from sie_config.model.model_spec import Input, ModelSpec, Name
from sie_config.model.structure import Finding
from sie_sdk.errors import ConfigurationError

PACKAGED: Final = Path(__file__).parent / "bundles"

Task = Literal[
    "dense",
    "sparse",
    "multivector",
    "score",
    "entities",
    "classes",
    "entailment",
    "spans",
    "zero_shot",
    "relations",
    "objects",
    "document",
]
"""What a model can do; extraction counts by its kind, for each kind is computed another way."""


class BundleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One image with one engine, and which models it runs."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]
    engine: Literal["packed", "gliner", "sglang"]
    families: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """The ``family`` of the models it runs: its adapters, in the published protocol's word."""
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1)]
    image: str
    """The name of its container image, without registry and tag."""
    requirements: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """What its image installs, as pip takes it."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    """Of several bundles that run a model, the one with the lowest number serves it."""
    inputs: tuple[Input, ...] = ("text",)
    machine_profiles: tuple[Name, ...] = ()
    """What it runs on; empty: on all."""
    status: Literal["ready", "planned"] = "ready"
    blocked_by: str = ""
    """What a planned bundle waits for, as a caller of its models reads it."""

    def runs(self, spec: ModelSpec) -> bool:
        """Whether it has what the model needs: its family, all its tasks, its inputs."""
        return (
            spec.family in self.families
            and tasks_of(spec) <= frozenset(self.tasks)
            and frozenset(spec.inputs) <= frozenset(self.inputs)
        )


def tasks_of(spec: ModelSpec) -> frozenset[str]:
    """What a model can do, in the words of `Task`."""
    named = {name for name in spec.tasks.__struct_fields__ if getattr(spec.tasks, name) is not None}
    extract = spec.tasks.extract
    return frozenset(named if extract is None else named - {"extract"} | {extract.kind})


def load(folder: Path = PACKAGED) -> tuple[BundleSpec, ...]:
    """The bundles of a folder, in the order in which they are preferred.

    Raises:
        ConfigurationError: lists the faults of all files, or says that there is none.
    """
    specs: dict[str, BundleSpec] = {}
    wrong: list[str] = []
    files = sorted(folder.glob("*.yaml"))
    if not files:
        wrong.append(f"There is no bundle (*.yaml) in {folder}.")
    for path in files:
        try:
            spec = parse(faults.from_yaml(path), origin=path.name)
        except ConfigurationError as error:
            wrong.append(error.message)
        else:
            if spec.id in specs:
                wrong.append(f"{path.name} defines {spec.id} a second time.")
            specs[spec.id] = spec
    if wrong:
        raise ConfigurationError(" ".join(wrong), field="bundles", faults=wrong)
    return tuple(preferred(specs.values()))


def parse(told: object, *, origin: str) -> BundleSpec:
    """One bundle from its document.

    Raises:
        ConfigurationError: names the origin and all faults.
    """
    spec = faults.checked(told, BundleSpec, origin=origin)
    if (spec.status == "planned") != bool(spec.blocked_by):
        fault = Finding("blocked_by", "a planned bundle says what it waits for, and no other does", spec.blocked_by)
        raise ConfigurationError(f"{origin} is wrong: {fault}.", field=origin, faults=[msgspec.to_builtins(fault)])
    return spec


def preferred(bundles: Iterable[BundleSpec]) -> list[BundleSpec]:
    """The bundles that serve before those that are planned, by priority, then by name."""
    return sorted(bundles, key=lambda bundle: (bundle.status == "planned", bundle.priority, bundle.id))


def set_hash(bundles: Iterable[BundleSpec]) -> str:
    """The protocol's ``bundles_hash`` (section 6): SHA-256 over name, priority and adapters of all; 64 hex digits."""
    told = [{"name": each.id, "priority": each.priority, "adapters": sorted(each.families)} for each in bundles]
    told.sort(key=lambda each: str(each["name"]))
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()
