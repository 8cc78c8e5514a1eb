"""``GET /v1/configs/models/{model}/status``: who serves a model as its spec stands now, and who not yet.

Owns the record (wire protocol, section 6) and when a worker counts as having applied a spec: when the hash of its
lane's specs, which its heartbeat tells, is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sie_broker.pools.pool import service_of
from sie_broker.records import Lane, WorkerState
from sie_config.epochs.state import State
from sie_config.registry import Registry, lanes_of
from sie_ingress import answer
from sie_ingress.applied import Applied
from sie_ingress.lanes import Lanes


class BundleStatus(msgspec.Struct, frozen=True):
    """A lane that serves the model, and its workers that are up: those that have its newest specs, and the others."""

    bundle_id: str
    pool: str
    machine_profile: str
    expected_bundle_config_hash: str
    total_eligible_workers: int
    acked_workers: list[str]
    pending_workers: list[str]
    acked: bool
    """Whether no worker is pending. Without any it is true: one that starts reads the newest."""


class IngressStatus(msgspec.Struct, frozen=True):
    """An ingress, and whether it has the model's newest spec."""

    ingress: str
    epoch: int
    acked: bool


class ModelStatus(msgspec.Struct, frozen=True):
    """How far the newest spec of a model has come."""

    model_id: str
    etag: str
    config_epoch: int
    """Of this ingress."""
    model_epoch: int
    """The one that wrote the model last."""
    all_bundles_acked: bool
    no_bundles: bool
    """Nothing serves it: it is planned."""
    bundles: list[BundleStatus]
    ingresses: list[IngressStatus]
    source: str


class ConfigStatus:
    """The route."""

    def __init__(
        self, registry: Registry, state: Callable[[], State], lanes: Lanes, ingresses: Callable[[], Sequence[Applied]]
    ) -> None:
        self._registry = registry
        self._state = state
        self._lanes = lanes
        self._ingresses = ingresses

    async def __call__(self, request: Request) -> Response:
        spec = self._registry.model(request.path_params["model"])
        state = self._state()
        stored = state.get(spec.id)
        epoch = 0 if stored is None else stored.epoch
        workers = self._lanes.workers()
        bundles = [self._bundle(lane, workers) for lane in lanes_of(spec)]
        told = ModelStatus(
            model_id=spec.id,
            etag=self._registry.etag(spec.id),
            config_epoch=state.epoch,
            model_epoch=epoch,
            all_bundles_acked=all(each.acked for each in bundles),
            no_bundles=not bundles,
            bundles=bundles,
            ingresses=[IngressStatus(each.ingress, each.epoch, each.epoch >= epoch) for each in self._ingresses()],
            source="ingress",
        )
        return answer.json(told)

    def _bundle(self, lane: Lane, workers: Sequence[WorkerState]) -> BundleStatus:
        """Workers that were given to another pool have the specs of the one they came from."""
        expected = self._registry.hash_of(lane)
        here = [each for each in workers if each.state == "ready" and lane in (each.lane, service_of(each.lane))]
        acked = sorted(each.worker for each in here if each.bundle_config_hash == expected)
        pending = sorted(each.worker for each in here if each.bundle_config_hash != expected)
        return BundleStatus(
            lane.bundle, lane.pool, lane.profile, expected, len(here), acked, pending, acked=not pending
        )
