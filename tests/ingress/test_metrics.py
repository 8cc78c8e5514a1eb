"""What an ingress counts: every answer by operation and code, every result's stages once."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from sie_ingress.metrics import Metrics, operation_of
from sie_sdk.results import Head
from sie_sdk.types import PairUsage, Timing
from tests.ingress.conftest import EVERYTHING, MODEL, RERANKER, ROUTE, Desk

ITEMS = [{"text": "a"}]


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


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    documented = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    metrics = Metrics()
    for collector, names in metrics.registry._collector_to_names.items():
        assert isinstance(collector, MetricWrapperBase)
        (family,) = collector.describe()
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name in names
        assert f"| `{name}` | {family.type} | {labels} |" in documented
    assert documented.count("| `sie_") == len(metrics.registry._collector_to_names)


def test_what_was_seen_is_forgotten_in_time() -> None:
    metrics = Metrics()
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
