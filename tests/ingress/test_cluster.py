"""What is told of the cluster: every field of the published protocol, each from what workers and the leader said."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from sie_broker.demand.lane_status import BELIEVED_S, LaneStatus
from sie_broker.records import WorkerState
from sie_config.registry import Registry, lane_of
from sie_ingress import cluster, worker_status
from sie_ingress.cluster import Cluster
from tests.ingress.conftest import EVERYTHING, SPEC, SPECS, Desk

LANE = lane_of(SPEC)
NOW = 1000.0
BUSY = WorkerState(
    "b-2",
    LANE,
    "ready",
    NOW,
    models=(SPEC.id, EVERYTHING.id),
    in_flight=3,
    completed=10,
    forwards=40,
    memory_bytes=7,
    total_bytes=100,
    batches=2,
    waiting_tokens=512,
    bundle_config_hash="abc",
)
STARTING = WorkerState("a-1", msgspec.structs.replace(LANE, profile="l4"), "starting", NOW, device="cuda:0")
ON_GPU = msgspec.structs.replace(STARTING, worker="c-3", state="ready", models=(SPEC.id,), device_bytes=50, in_flight=1)
REGISTRY = Registry(SPECS)


def seen(*workers: WorkerState, statuses: list[LaneStatus] | None = None, qps: float = 0.0) -> Cluster:
    return cluster.seen(REGISTRY, workers, statuses or [], qps, NOW)


def test_the_cluster_is_counted_by_what_is_ready_and_loaded() -> None:
    told = seen(BUSY, STARTING, ON_GPU, qps=12.34567)
    assert msgspec.to_builtins(told.cluster) == {
        "worker_count": 2,
        "gpu_count": 2,
        "models_loaded": 2,
        "total_qps": 12.346,
    }
    assert (told.type, told.status, told.timestamp) == ("gateway", "healthy", NOW)
    assert told.configured_gpu_types == ["cpu"] and told.live_gpu_types == ["cpu", "l4"]


def test_a_worker_has_every_field_that_the_published_client_reads_and_its_gpu_is_a_string() -> None:
    starting, busy, on_gpu = seen(BUSY, STARTING, ON_GPU).workers
    assert [starting.name, busy.name, on_gpu.name] == ["a-1", "b-2", "c-3"]
    assert msgspec.to_builtins(busy) == {
        "name": "b-2",
        "url": "",
        "gpu": "cpu",
        "gpu_count": 0,
        "ready_gpu_slots": 0,
        "pool": "default",
        "bundle": "default",
        "healthy": True,
        "state": "ready",
        "loaded_models": [SPEC.id, EVERYTHING.id],
        "queue_depth": 3,
        "pending_cost": 512,
        "inflight_batches": 2,
        "completed": 10,
        "texts_computed": 40,
        "memory_used_bytes": 7,
        "memory_total_bytes": 100,
        "bundle_config_hash": "abc",
        "startup": {},
    }
    assert (starting.healthy, starting.gpu_count, starting.ready_gpu_slots) == (False, 1, 0)
    assert (on_gpu.gpu, on_gpu.ready_gpu_slots, on_gpu.memory_used_bytes) == ("l4", 1, 50)


def test_every_model_of_the_catalogue_has_a_row_with_where_it_is_and_what_waits_there() -> None:
    rows = {row.name: row for row in seen(BUSY, ON_GPU).models}
    assert sorted(rows) == sorted(spec.id for spec in SPECS)
    assert msgspec.to_builtins(rows[SPEC.id]) == {
        "name": SPEC.id,
        "state": "loaded",
        "worker_count": 2,
        "gpu_types": ["cpu", "l4"],
        "total_queue_depth": 4,
    }
    assert rows[EVERYTHING.id].worker_count == 1
    assert (rows["org/reranker"].state, rows["org/reranker"].worker_count) == ("available", 0)


STATUS = LaneStatus(LANE, 5, 20.0, False, 1, 0, at=NOW)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, "healthy"),
        ({"at": NOW - BELIEVED_S - 1}, "degraded"),
        ({"at": NOW - BELIEVED_S - 1, "waiting": 0, "live": 1}, "degraded"),
        ({"at": NOW - 3600, "waiting": 0, "wanted": 0}, "healthy"),
    ],
    ids=["told of just now", "work and no word for long", "workers and no word for long", "at rest"],
)
def test_it_is_degraded_while_nobody_tells_how_a_lane_with_work_or_workers_stands(
    changed: dict[str, Any], status: str
) -> None:
    assert seen(statuses=[msgspec.structs.replace(STATUS, **changed)]).status == status


def test_a_server_without_workers_is_healthy_because_they_come_with_work() -> None:
    told = seen()
    assert (told.status, told.cluster.worker_count, told.live_gpu_types) == ("healthy", 0, [])


def test_seen_as_one_worker_it_has_the_union_of_what_they_hold_and_no_account_of_its_machine() -> None:
    told = worker_status.status(REGISTRY, seen(STARTING, BUSY, ON_GPU), NOW - 61.5, ready=True)
    assert (told.ready, told.machine_profile, told.bundle, told.bundle_config_hash) == (True, "cpu", "default", "abc")
    assert told.loaded_models == [SPEC.id, EVERYTHING.id] and told.gpu_count == 2
    assert (told.server.uptime_seconds, told.server.user, told.server.working_dir) == (61, "", "")
    assert [gpu.gpu_type for gpu in told.gpus] == ["l4", "l4"]
    (model,) = [model for model in told.models if model.name == SPEC.id]
    assert (model.state, model.device, model.queue_depth, model.config["dims"]) == ("loaded", "cpu", 4, {"dense": 2})


def test_seen_as_one_worker_a_server_without_workers_has_the_catalogue_s_profile() -> None:
    told = worker_status.status(REGISTRY, seen(), NOW, ready=False)
    assert (told.ready, told.machine_profile, told.loaded_models, told.gpus) == (False, "cpu", [], [])
    empty = worker_status.status(Registry(), cluster.seen(Registry(), [], [], 0.0, NOW), NOW, ready=False)
    assert (empty.machine_profile, empty.models) == ("", [])


async def test_health_tells_of_workers_as_they_beat(desk: Desk) -> None:
    async with desk.worker():
        for text in ("a", "b"):
            assert (await desk.encode(text)).status_code == 200
        told = (await desk.client.get("/health")).json()
    (worker,) = told["workers"]
    assert (worker["gpu"], worker["healthy"], told["cluster"]["worker_count"]) == ("cpu", True, 1)
    # Whatever is in it can be read back as what it is.
    msgspec.convert(told, type=Cluster)


async def test_health_tells_the_rate_at_which_workers_answer(desk: Desk) -> None:
    now = time.time()
    for ago_s, completed in ((2.0, 10), (0.0, 40)):
        beat = WorkerState("w", LANE, "ready", now - ago_s, completed=completed)
        desk.lanes.heard("w", msgspec.msgpack.encode(beat))
    told = (await desk.client.get("/health")).json()
    assert told["cluster"]["total_qps"] == pytest.approx(15, rel=0.01)


async def test_a_process_that_answers_lives_even_while_it_is_not_ready(desk: Desk) -> None:
    desk.readiness.leave()
    for path in ("/healthz", "/livez"):
        answer = await desk.client.get(path)
        assert (answer.status_code, answer.text) == (200, "ok")
    assert (await desk.client.get("/readyz")).status_code == 503
