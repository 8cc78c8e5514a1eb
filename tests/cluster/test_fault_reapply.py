"""The whole system deleted and applied again: what was promised before is kept, and nothing else is left meanwhile."""

from __future__ import annotations

import logging
import time

import httpx
import pytest

from tests.cluster import catalogue, kube
from tests.cluster.deployed import INGRESS, Deployed
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]
log = logging.getLogger("e2e")

KEPT = "acme/kept"
TEXTS = [f"work {number}" for number in range(20)]
OURS = "app.kubernetes.io/part-of=sie"
EVERYTHING = (
    "services.serving.knative.dev,revisions.serving.knative.dev,routes.serving.knative.dev,"
    "configurations.serving.knative.dev,podautoscalers,statefulsets,deployments.apps,replicasets,pods,services,"
    "configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets,secrets,persistentvolumeclaims"
)
STAYS = {
    "Secret/sie-nats-users",
    "Secret/sie-tokens",
    "PersistentVolumeClaim/data-sie-nats-0",
    "PersistentVolumeClaim/sie-weights",
}


def test_all_that_was_deleted_and_applied_again_has_its_catalogue_and_its_queued_work(at_zero: Deployed) -> None:
    with catalogue.without_afterwards(at_zero, KEPT):
        assert catalogue.write(at_zero, KEPT).is_success
        kube.until(lambda: catalogue.everywhere(at_zero, KEPT))
        epoch = catalogue.epoch(at_zero)
        # Nobody starts a bundle, so that the work still waits when all is deleted.
        kube.kubectl("scale", "deployment/sie-demand", "--replicas=0", "--timeout=60s")
        kube.until(lambda: not kube.objects("pods", "app.kubernetes.io/name=sie-demand"))
        jobs = [queued(text) for text in TEXTS]
        assert not kube.pods()
        began = time.monotonic()
        at_zero.remove(volumes=False)
        kube.until(lambda: left() <= STAYS, 150)
        log.info("deleted in %.0f s; left: %s", time.monotonic() - began, ", ".join(sorted(left())))
        began = time.monotonic()
        at_zero.up()
        log.info("applied again in %.0f s", time.monotonic() - began)
        assert catalogue.epoch(at_zero) == epoch
        with at_zero.client() as client:
            right = [row.dense for row in client.encode(MODEL, TEXTS, wait_for_capacity=True)]
            kube.until(lambda: all(done(job) for job in jobs), 150)
            for job, row in zip(jobs, right, strict=True):
                assert vector(job) == pytest.approx(row, abs=1e-2)
            assert client.encode(KEPT, "a cat", wait_for_capacity=True).dense is not None
        log.info("%d of %d jobs that had waited answered, epoch %d as before", len(jobs), len(TEXTS), epoch)


def queued(text: str) -> str:
    """The address of a job that was accepted while no bundle runs."""
    body = {"items": [{"text": text}]}
    answer = httpx.post(f"{INGRESS}/v1/encode/{MODEL}", json=body, headers={"Prefer": "respond-async"}, timeout=30)
    assert answer.status_code == 202, answer.text
    return INGRESS + answer.headers["location"]


def done(job: str) -> bool:
    """Whether a job has its answer."""
    return httpx.get(job, headers={"Prefer": "wait=10"}, timeout=30).status_code == 200


def vector(job: str) -> list[float]:
    """The one vector of a job's answer."""
    body = httpx.get(job, timeout=30).json()
    vector: list[float] = body["items"][0]["dense"]["values"]
    return vector


def left() -> set[str]:
    """What there is of ours, by kind and name."""
    # Pods and the claims of NATS whatever their labels.
    listed = [*kube.objects(EVERYTHING, OURS), *kube.objects("pods,persistentvolumeclaims")]
    return {f"{each['kind']}/{kube.name(each)}" for each in listed}
