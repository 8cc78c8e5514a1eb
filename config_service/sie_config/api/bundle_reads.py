"""What serves models, as ``/v1/configs/bundles`` tells it: from the records of what is deployed, and from memory.

Owns these answers; the routes are ``reads``'. What a bundle is stands in ``bundle_spec``, which models it serves is
decided by ``placement``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sie_config.deployment import bundle_spec
from sie_config.deployment.bundle_spec import BundleSpec
from sie_config.deployment.placement import Deployment
from sie_config.registry import Registry
from sie_sdk.errors import BundleNotFoundError

SOURCE = "packaged"
"""Where every bundle comes from: the files of the config service."""


class BundleRow(msgspec.Struct, frozen=True):
    """A bundle in the list of all; its adapters are the families it runs."""

    bundle_id: str
    engine: str
    priority: int
    status: str
    adapter_count: int
    model_count: int
    source: str
    connected_workers: int
    machine_profiles: list[str]
    """Those of it that are deployed."""


class BundleRows(msgspec.Struct, frozen=True):
    """Every bundle, as they are preferred."""

    bundles: list[BundleRow]
    bundles_hash: str


class Machine(msgspec.Struct, frozen=True):
    """A machine profile that a bundle runs on."""

    name: str
    deployed: bool
    gpu: str
    memory_bytes: int


class Bundle(msgspec.Struct, frozen=True):
    """One bundle: what it runs, on what, and which models that is."""

    name: str
    engine: str
    priority: int
    status: str
    blocked_by: str
    source: str
    adapters: list[str]
    tasks: list[str]
    inputs: list[str]
    image: str
    requirements: list[str]
    machine_profiles: list[Machine]
    connected_workers: int
    model_count: int
    models: list[str]


class Bundles:
    """Tells of the bundles. ``workers``: how many workers one has, as far as this process knows."""

    def __init__(self, registry: Registry, workers: Callable[[str], int]) -> None:
        self._registry = registry
        self._workers = workers

    def rows(self) -> BundleRows:
        """All bundles, as they are preferred."""
        there = self._there
        rows = [
            BundleRow(
                bundle_id=each.id,
                engine=each.engine,
                priority=each.priority,
                status=each.status,
                adapter_count=len(each.families),
                model_count=len(self._models(each.id)),
                source=SOURCE,
                connected_workers=self._workers(each.id),
                machine_profiles=[profile.name for profile in there.on(each) if profile.name in there.deployed],
            )
            for each in there.bundles
        ]
        return BundleRows(rows, self.hash)

    def every(self) -> list[Bundle]:
        """All of them whole."""
        return [self._told(each) for each in self._there.bundles]

    def one(self, name: str) -> Bundle:
        """The bundle of that name, in whatever case.

        Raises:
            BundleNotFoundError: there is none; lists those there are.
        """
        there = self._there
        if (found := there.bundle(name)) is not None:
            return self._told(found)
        names = [bundle.id for bundle in there.bundles]
        raise BundleNotFoundError(
            f"There is no bundle {name[:64]!r}.",
            field="bundle",
            hint=f"There is {' and '.join(names) or 'none'}.",
            bundles=names,
        )

    @property
    def hash(self) -> str:
        """Of the bundles there are: the protocol's ``bundles_hash``."""
        return bundle_spec.set_hash(self._there.bundles)

    @property
    def _there(self) -> Deployment:
        """What is deployed; nothing, as long as nobody has told."""
        return self._registry.deployment or Deployment((), (), ())

    def _models(self, bundle: str) -> list[str]:
        return [spec.id for spec in self._registry.specs() if spec.bundle == bundle]

    def _told(self, bundle: BundleSpec) -> Bundle:
        models, there = self._models(bundle.id), self._there
        return Bundle(
            name=bundle.id,
            engine=bundle.engine,
            priority=bundle.priority,
            status=bundle.status,
            blocked_by=bundle.blocked_by,
            source=SOURCE,
            adapters=sorted(bundle.families),
            tasks=list(bundle.tasks),
            inputs=list(bundle.inputs),
            image=bundle.image,
            requirements=list(bundle.requirements),
            machine_profiles=[
                Machine(profile.name, profile.name in there.deployed, profile.gpu, profile.memory_bytes)
                for profile in there.on(bundle)
            ],
            connected_workers=self._workers(bundle.id),
            model_count=len(models),
            models=models,
        )
