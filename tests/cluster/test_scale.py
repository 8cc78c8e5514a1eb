"""The life of a lane on a real autoscaler: as many pods as the backlog asks for and none more, and nothing at rest."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import pytest
from bench.table import markdown
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sie_sdk.types import EncodeResult
from tests.cluster import changes, kube, timeline
from tests.cluster.deployed import Deployed
from tests.cluster.load import TEXTS, Vectors, vectors_of
from tests.cluster.place import NAMESPACE
from tests.cluster.timeline import Step
from tests.cluster.watched import PODS, Watch, asked_for
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(500)]

log = logging.getLogger("e2e")

MOST = 3
"""Pods of the lane at most, by the overlay's values."""
JOBS, TEXTS_EACH = 150, 24
"""A pod with two cores of its own computes some eight such jobs a second."""
REST_S = 20.0
AT_REST = {"sie-demand", "sie-ingress", "sie-nats"}


def test_a_backlog_takes_a_lane_from_one_pod_to_three_to_one_to_none_with_no_pod_too_many(at_zero: Deployed) -> None:
    # A tenth of a second: whatever rate a pod was seen at, this backlog asks for as many as may be. Short sessions, so
    # that each number of pods is held through renewals.
    short = changes.demand(SIE_OBJECTIVE_S="0.1", SIE_SESSION_S="6", SIE_MAX_SCALE=str(MOST))
    with short, Watch(PODS) as watch, at_zero.client() as client:
        began = time.time()
        client.encode(MODEL, TEXTS[0], wait_for_capacity=True)
        backlog = [client.submit("encode", MODEL, _texts(number)) for number in range(JOBS)]
        steps = [Step(time.time(), f"{JOBS} jobs queued")]
        results = [job.result() for job in backlog]
        steps.append(Step(time.time(), f"{JOBS} jobs answered"))
        kube.until(lambda: _computed(at_zero) >= 1 + JOBS * TEXTS_EACH)
        computed = _computed(at_zero)

        def one_is_left() -> bool:
            client.encode(MODEL, TEXTS[0])  # work for one
            return len(kube.pods()) == 1

        kube.until(one_is_left, 150)
        vectors = vectors_of(at_zero)
        at_zero.to_zero()
        asked = [told for told in asked_for() if told[0] >= began]
    pods = timeline.of("Pod", watch.changes)
    steps += [Step(at, f"pods wanted: {count}") for at, count in asked]
    steps += [Step(at, f"pods: {there}, ready: {ready}") for at, there, ready in timeline.up(pods)]
    log.info(timeline.table("A backlog: 1 -> 3 -> 1 -> 0", steps, began))
    assert computed == 1 + JOBS * TEXTS_EACH, "something was computed again"
    assert max(there for _, there, _ in timeline.up(pods)) == MOST
    assert all(there <= timeline.most(asked, at) for at, there, _ in timeline.up(pods))
    assert len(timeline.lives(pods)) <= timeline.rises(asked)
    assert all(_right(rows, number, vectors) for number, rows in enumerate(results))


def test_at_rest_only_the_queue_the_demand_holder_and_one_ingress_run(at_zero: Deployed) -> None:
    kube.until(lambda: {_of(pod) for pod in kube.objects("pods")} == AT_REST, 150)
    before = _used()
    time.sleep(REST_S)  # what is measured is a time at rest
    after = _used()
    rows = []
    for name, used in sorted(after.items()):
        share = (used.cpu_s - before[name].cpu_s) / (used.at - before[name].at)
        rows.append([name, f"{used.bytes / 1e6:.0f}", f"{100 * share:.2f}"])
    log.info(markdown("At rest", ["pod and container", "MB", "% of one core"], rows))
    assert {_of(pod) for pod in kube.objects("pods")} == AT_REST
    assert all(len(kube.objects("pods", f"app.kubernetes.io/name={name}")) == 1 for name in AT_REST)


def _texts(number: int) -> list[str]:
    return [TEXTS[(number + each) % len(TEXTS)] for each in range(TEXTS_EACH)]


def _right(rows: list[EncodeResult], number: int, vectors: Vectors) -> bool:
    """Whether these are the vectors of the job's own texts."""
    given = zip(rows, _texts(number), strict=True)
    return all(row.dense is not None and float(row.dense @ vectors[text]) > 0.9999 for row, text in given)


def _computed(deployed: Deployed) -> int:
    """Texts that the workers which are up have computed; a heartbeat may be a second behind."""
    return sum(worker["texts_computed"] for worker in deployed.workers())


def _of(pod: kube.Object) -> str:
    return str(pod["metadata"]["labels"].get("app.kubernetes.io/name"))


class Used(NamedTuple):
    """What a container had used when it was looked at."""

    at: float
    cpu_s: float
    bytes: float


def _used() -> dict[str, Used]:
    """All of ours, by pod and container."""
    told: dict[tuple[str, str], dict[str, Sample]] = {}
    for node in kube.objects("nodes", namespace=""):
        path = f"/api/v1/nodes/{kube.name(node)}/proxy/metrics/resource"
        for family in text_string_to_metric_families(kube.kubectl("get", "--raw", path, namespace=None)):
            for sample in family.samples:
                if sample.labels.get("namespace") == NAMESPACE and "container" in sample.labels:
                    told.setdefault((sample.labels["pod"], sample.labels["container"]), {})[sample.name] = sample
    return {" ".join(name): _read(samples) for name, samples in told.items()}


def _read(samples: dict[str, Sample]) -> Used:
    cpu = samples["container_cpu_usage_seconds_total"]
    return Used(float(cpu.timestamp or 0), cpu.value, samples["container_memory_working_set_bytes"].value)
