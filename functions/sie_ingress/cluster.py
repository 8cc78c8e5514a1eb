"""The cluster as one ingress sees it, in the words of the published protocol (section 1.7) and our own. Pure.

Owns the records of ``GET /health`` and of the frames of ``/ws/cluster-status``. What is known of workers and lanes is
``lanes``'.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sie_broker.demand.lane_status import BELIEVED_S, LaneStatus
from sie_broker.pools.pool import service_of
from sie_broker.records import WorkerState
from sie_config.registry import Registry, lanes_of
from sie_ingress.models import fleet


class Summary(Struct, frozen=True):
    """The cluster in numbers; ``total_qps``: works answered in a second, by all workers, over the last ten.

    ``worker_count``: those that are ready.
    """

    worker_count: int
    gpu_count: int
    models_loaded: int
    total_qps: float


class LaneRow(Struct, frozen=True):
    """A lane: ``waiting`` works are queued or in hand, of which one pod clears ``rate`` in a second.

    ``failure``: why no pod comes, when that is given up.
    """

    pool: str
    bundle: str
    gpu: str
    waiting: int
    rate: float
    measured: bool
    wanted: int
    live: int
    bundle_config_hash: str
    failure: str


class WorkerRow(Struct, frozen=True):
    """A worker; ``startup`` is seconds from the decision to start it to each milestone.

    ``gpu`` is its machine profile, ``gpu_count`` the GPUs it computes on: none on a CPU. ``pending_cost`` is tokens
    that wait for the device. ``url`` is empty: workers are reached through their queues.
    """

    name: str
    url: str
    gpu: str
    gpu_count: int
    ready_gpu_slots: int
    pool: str
    bundle: str
    healthy: bool
    state: str
    loaded_models: list[str]
    queue_depth: int
    pending_cost: int
    inflight_batches: int
    completed: int
    texts_computed: int
    memory_used_bytes: int
    memory_total_bytes: int
    bundle_config_hash: str
    startup: dict[str, float]


class ModelRow(Struct, frozen=True):
    """A model: on how many workers it is, their machine profiles, and what they have in hand of any model."""

    name: str
    state: str
    worker_count: int
    gpu_types: list[str]
    total_queue_depth: int


class Cluster(Struct, frozen=True, kw_only=True):
    """What is seen at ``timestamp``, in seconds since the epoch.

    ``configured_gpu_types`` are the machine profiles of the catalogue, ``live_gpu_types`` those with a worker.

    ``status`` is ``degraded`` while nobody tells how a lane with work or workers stands: the demand leader or NATS is
    away; and while a lane has failed. No worker at all is healthy: they come with work.
    """

    timestamp: float
    status: str
    type: str = "gateway"
    configured_gpu_types: list[str]
    live_gpu_types: list[str]
    cluster: Summary
    lanes: list[LaneRow]
    workers: list[WorkerRow]
    models: list[ModelRow]


def seen(
    registry: Registry, workers: Sequence[WorkerState], statuses: Sequence[LaneStatus], qps: float, now: float
) -> Cluster:
    """What there is to tell at ``now``, seconds since the epoch; ``qps``: see `throughput.Throughput`."""
    workers = sorted(workers, key=lambda worker: worker.worker)
    rows = [row(worker) for worker in workers]
    lanes = [_lane(registry, status, now) for status in statuses]
    told = [not status.at_rest and now - status.at > BELIEVED_S for status in statuses]
    return Cluster(
        timestamp=now,
        status="degraded" if any(told) or any(lane.failure for lane in lanes) else "healthy",
        configured_gpu_types=sorted({lane.profile for spec in registry.specs() for lane in lanes_of(spec)}),
        live_gpu_types=sorted({worker.lane.profile for worker in workers if worker.state == "ready"}),
        cluster=Summary(
            worker_count=sum(each.healthy for each in rows),
            gpu_count=sum(each.gpu_count for each in rows),
            models_loaded=len({model for worker in workers for model in worker.models}),
            total_qps=round(qps, 3),
        ),
        lanes=lanes,
        workers=rows,
        models=_models(registry, workers),
    )


def _lane(registry: Registry, status: LaneStatus, now: float) -> LaneRow:
    lane = status.lane
    return LaneRow(
        pool=lane.pool,
        bundle=lane.bundle,
        gpu=lane.profile,
        waiting=status.waiting,
        rate=status.rate,
        measured=status.measured,
        wanted=status.wanted,
        live=status.live,
        failure=status.failure if now - status.at < BELIEVED_S and not status.live else "",
        # A pool's workers have the specs of the default one.
        bundle_config_hash=registry.hash_of(lane) or registry.hash_of(service_of(lane)),
    )


def row(worker: WorkerState) -> WorkerRow:
    """One worker."""
    gpus = int(worker.device.startswith("cuda"))
    return WorkerRow(
        name=worker.worker,
        url="",
        gpu=worker.lane.profile,
        gpu_count=gpus,
        ready_gpu_slots=gpus if worker.state == "ready" else 0,
        pool=worker.lane.pool,
        bundle=worker.lane.bundle,
        healthy=worker.state == "ready",
        state=worker.state,
        loaded_models=list(worker.models),
        queue_depth=worker.in_flight,
        pending_cost=worker.waiting_tokens,
        inflight_batches=worker.batches,
        completed=worker.completed,
        texts_computed=worker.forwards,
        memory_used_bytes=worker.device_bytes or worker.memory_bytes,
        memory_total_bytes=worker.total_bytes,
        bundle_config_hash=worker.bundle_config_hash,
        startup=worker.startup,
    )


def _models(registry: Registry, workers: Sequence[WorkerState]) -> list[ModelRow]:
    here = fleet(workers)
    holders: dict[str, list[WorkerState]] = {}
    for worker in workers:
        for model in worker.models:
            holders.setdefault(model, []).append(worker)
    return [
        ModelRow(
            name=spec.id,
            state=here.state(spec.id),
            worker_count=len(those := holders.get(spec.id, [])),
            gpu_types=sorted({worker.lane.profile for worker in those}),
            total_queue_depth=sum(worker.in_flight for worker in those),
        )
        for spec in registry.specs()
        if spec.status == "ready"
    ]
