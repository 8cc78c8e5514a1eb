"""What an ingress counts: every answer by operation and code, every result's stages once."""

from __future__ import annotations

import math
import time
from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import LaneStatus
from sie_broker.records import DeadLetter
from sie_config.registry import lane_of
from sie_ingress.cluster_metrics import GAUGES, ClusterGauges
from sie_ingress.metrics import Metrics, operation_of
from sie_sdk.errors import QueueUnavailableError
from sie_sdk.results import Head
from sie_sdk.types import PairUsage, Timing
from tests.conftest import eventually
from tests.ingress.conftest import EVERYTHING, MODEL, RERANKER, ROUTE, SPEC, Desk
from tests.ingress.test_cluster import BUSY, ON_GPU, seen

LANE = lane_of(SPEC)
MODEL_WORKERS = "sie_model_workers"

ITEMS = [{"text": "a"}]


async def unanswered() -> int:
    """The number of dead letters of a broker that is away."""
    raise QueueUnavailableError("The broker does not answer.")


class Scrape:
    """One ``GET /metrics``, read: ``value(name, label=...)``."""

    def __init__(self, text: str) -> None:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def value(self, name: str, **labels: str) -> float | None:
        return self.values.get((name, frozenset(labels.items())))


async def scrape(desk: Desk) -> Scrape:
    answer = await desk.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return Scrape(answer.text)


async def test_answers_are_counted_by_operation_and_code(desk: Desk) -> None:
    await desk.encode("cold")
    async with desk.worker():
        await desk.encode("a")
        await desk.encode("refuse")
        await desk.encode("crash")
        await desk.post(f"/v1/score/{RERANKER.id}", {"query": {"text": "q"}, "items": ITEMS})
    await desk.client.get("/v1/jobs/nope")
    await desk.client.get("/somewhere/a-caller-made-up")
    found = await scrape(desk)
    counted = {
        (dict(labels)["operation"], dict(labels)["code"]): value
        for (name, labels), value in found.values.items()
        if name == "sie_ingress_requests_total"
    }
    assert counted == {
        ("encode", "JOB"): 1,
        ("encode", "OK"): 1,
        ("encode", "INVALID_INPUT"): 1,
        ("encode", "INTERNAL_ERROR"): 1,
        ("score", "OK"): 1,
        ("jobs", "JOB_NOT_FOUND"): 1,
        ("other", "NOT_FOUND"): 1,
    }
    assert found.value("sie_ingress_request_seconds_count", operation="encode") == 4
    assert found.value("sie_ingress_requests_in_flight", operation="encode") == 0


async def test_an_unforeseen_error_is_counted_as_what_the_caller_gets(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.registry, "resolve", None)
    assert (await desk.encode("a")).status_code == 500
    found = await scrape(desk)
    assert found.value("sie_ingress_requests_total", operation="encode", code="INTERNAL_ERROR") == 1


async def test_a_results_stages_are_timed_once_however_often_it_is_fetched(desk: Desk) -> None:
    cold = await desk.post(f"/v1/encode/{EVERYTHING.id}", {"items": ITEMS})
    async with desk.worker():
        for _ in range(3):
            await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
        await desk.post(f"/v1/score/{RERANKER.id}", {"query": {"text": "q"}, "items": ITEMS * 2})
    found, model = await scrape(desk), EVERYTHING.id
    for stage in ("queue", "tokenization", "batch_wait", "inference", "postprocessing", "total"):
        assert found.value("sie_stage_seconds_count", model=model, stage=stage) == 1
    assert found.value("sie_stage_seconds_sum", model=model, stage="inference") == pytest.approx(0.003)
    assert found.value("sie_stage_seconds_bucket", model=model, stage="inference", le="0.005") == 1
    assert found.value("sie_stage_seconds_bucket", model=model, stage="inference", le="0.0025") == 0
    assert found.value("sie_input_tokens_total", model=model) == 1
    assert found.value("sie_pairs_total", model=RERANKER.id) == 2
    assert found.value("sie_pairs_total", model=model) is None


async def test_lanes_and_loaded_models_are_told_as_they_stand(desk: Desk) -> None:
    assert (await scrape(desk)).value("sie_degraded") == 0
    status = LaneStatus(LANE, 5, 20.0, True, 2, 0, time.time(), failure="No image.")
    await desk.broker.lanes.put(lane_status.key(LANE), msgspec.json.encode(status))
    await eventually(lambda: desk.lanes.statuses() != [])
    names = ("works_waiting", "pod_rate", "pods_wanted", "pods_ready", "failed")
    own = {"pool": LANE.pool, "bundle": LANE.bundle, "machine_profile": LANE.profile}
    found = await scrape(desk)
    assert [found.value(f"sie_lane_{name}", **own) for name in names] == [5, 20, 2, 0, 1]
    assert found.value("sie_degraded") == 1
    async with desk.worker():
        await eventually(lambda: desk.lanes.live(LANE))
        found = await scrape(desk)
    assert [found.value(f"sie_lane_{name}", **own) for name in names] == [5, 20, 2, 1, 0]
    assert found.value("sie_degraded") == 0


async def test_dead_letters_are_counted_at_each_scrape_and_unknown_while_the_broker_is_away(desk: Desk) -> None:
    assert (await scrape(desk)).value("sie_dead_letters") == 0
    letter = DeadLetter("a", "malformed", "sie.events.encode", {}, at=1.0, accepted=0.5, deliveries=1, size=0)
    await desk.broker.dead.bury(letter, 1)
    assert (await scrape(desk)).value("sie_dead_letters") == 1

    page = await Metrics(unanswered).page(Request({"type": "http"}))
    assert math.isnan(Scrape(bytes(page.body).decode()).value("sie_dead_letters") or 0)


def test_a_model_is_told_with_the_workers_that_have_it() -> None:
    (workers,) = [each for each in ClusterGauges(lambda: seen(BUSY, ON_GPU)).collect() if each.name == MODEL_WORKERS]
    assert {sample.labels["model"]: sample.value for sample in workers.samples} == {SPEC.id: 2, EVERYTHING.id: 1}


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    documented = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    metrics = Metrics(unanswered)
    for name, (_, told_by) in GAUGES.items():
        assert f"| `{name}` | gauge | {', '.join(f'`{label}`' for label in told_by)} |" in documented
    for collector, names in metrics.registry._collector_to_names.items():
        assert isinstance(collector, MetricWrapperBase)
        (family,) = collector.describe()
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name in names
        assert f"| `{name}` | {family.type} | {labels} |" in documented
    assert documented.count("| `sie_") == len(metrics.registry._collector_to_names) + len(GAUGES)


def test_what_was_seen_is_forgotten_in_time() -> None:
    metrics = Metrics(unanswered)
    for number in range(5000):
        metrics.computed(str(number), Head(MODEL, Timing(), PairUsage(1)))
    assert len(metrics._seen) == 4096


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        (ROUTE, "encode"),
        ("/v1/score/a/b", "score"),
        ("/v1/extract/a", "extract"),
        ("/v1/jobs/1", "jobs"),
        ("/v1/models", "models"),
        ("/v1/", "other"),
        ("/v1/invented/x", "other"),
        ("/", "other"),
        ("/metrics", "other"),
    ],
)
def test_paths_that_callers_make_up_make_no_labels(path: str, operation: str) -> None:
    assert operation_of(path) == operation
