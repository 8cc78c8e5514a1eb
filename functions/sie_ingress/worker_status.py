"""The whole server as if it were one worker, for who watches ``/ws/status``: the protocol's frame of a worker. Pure.

Owns its records. What the protocol has in it and no part of ours knows (the memory of one model, the utilization of a
GPU) is left out, and where a process runs and as whom is nobody's business.
"""

from __future__ import annotations

import os
from typing import Any

from msgspec import Struct

from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource
from sie_config.registry import Registry, lane_of
from sie_ingress.cluster import Cluster, WorkerRow
from sie_ingress.models import dims
from sie_sdk.version import __version__


class Server(Struct, frozen=True):
    """This process."""

    version: str
    uptime_seconds: int
    pid: int
    user: str = ""
    working_dir: str = ""


class Gpu(Struct, frozen=True):
    """The GPU of one worker; ``device`` is the worker's name."""

    device: str
    name: str
    gpu_type: str
    memory_used_bytes: int
    memory_total_bytes: int


class ModelStatus(Struct, frozen=True):
    """One model; ``queue_depth`` counts what its workers have in hand of any model."""

    name: str
    state: str
    device: str | None
    config: dict[str, Any]
    queue_depth: int
    queue_pending_items: int


class Status(Struct, frozen=True):
    """All workers as one. ``machine_profile`` and ``bundle``: of the first that is up, else the catalogue's."""

    timestamp: float
    ready: bool
    name: str
    machine_profile: str
    pool_name: str
    gpu_count: int
    bundle: str
    bundle_config_hash: str
    loaded_models: list[str]
    server: Server
    gpus: list[Gpu]
    models: list[ModelStatus]


def status(registry: Registry, seen: Cluster, began: float, ready: bool) -> Status:
    """The frame at the time of ``seen``; the process started at ``began``, seconds since the epoch."""
    workers = sorted(seen.workers, key=lambda worker: not worker.healthy)
    specs = registry.specs()
    first, spec = next(iter(workers), None), next((spec for spec in specs if spec.status == "ready"), None)
    profile, pool, bundle = (first.gpu, first.pool, first.bundle) if first else ("", "default", "default")
    if first is None and spec is not None:
        lane = lane_of(spec)
        profile, pool, bundle = lane.profile, lane.pool, lane.bundle
    rows = {row.name: row for row in seen.models}
    return Status(
        timestamp=seen.timestamp,
        ready=ready,
        name="sie-knative",
        machine_profile=profile,
        pool_name=pool,
        gpu_count=seen.cluster.gpu_count,
        bundle=bundle,
        bundle_config_hash=first.bundle_config_hash if first else "",
        loaded_models=sorted({model for worker in workers for model in worker.loaded_models}),
        server=Server(__version__, int(seen.timestamp - began), os.getpid()),
        gpus=[_gpu(worker) for worker in workers if worker.gpu_count],
        models=[
            ModelStatus(
                spec.id,
                row.state,
                next(iter(row.gpu_types), None),
                _config(spec),
                row.total_queue_depth,
                row.total_queue_depth,
            )
            for spec in specs
            if (row := rows.get(spec.id)) is not None
        ],
    )


def _gpu(worker: WorkerRow) -> Gpu:
    return Gpu(worker.name, worker.gpu, worker.gpu, worker.memory_used_bytes, worker.memory_total_bytes)


def _config(spec: ModelSpec) -> dict[str, Any]:
    dense = spec.tasks.dense
    return {
        "hf_id": next((source.repo for source in spec.sources if isinstance(source, HubSource)), None),
        "adapter": spec.family,
        "inputs": ["text"],
        "outputs": spec.outputs,
        "dims": dims(spec),
        "max_sequence_length": spec.max_sequence_length,
        "pooling": dense.pooling if dense is not None else None,
        "normalize": dense.normalize if dense is not None else False,
        "adapter_options_loadtime": None,
        "adapter_options_runtime": spec.chosen.options or None,
    }
