"""What everything runs on is killed under load: Knative's own parts and ours, one after the other."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import httpx
import pytest

from tests.cluster import catalogue, kube, place
from tests.cluster.deployed import CONFIG, SERVICE, Deployed
from tests.cluster.endings import take_away
from tests.cluster.load import TEXTS, Load, Vectors, account, one_pod, vectors_of
from tests.cluster.place import NAMESPACE
from tests.faults.callers import PROXY_S
from tests.platform import MODEL, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")


class Part(NamedTuple):
    """A part of the platform, by the pods it runs in."""

    selector: str
    namespace: str = NAMESPACE


def ours(name: str) -> Part:
    """A part of this deployment."""
    return Part(f"app.kubernetes.io/name=sie-{name}")


AUTOSCALER = Part("app=autoscaler", "knative-serving")
KNATIVES = {
    "activator": Part("app=activator", "knative-serving"),
    "gateway": Part("app=3scale-kourier-gateway", "kourier-system"),
    "autoscaler": AUTOSCALER,
}
OURS = {"ingress": ours("ingress"), "demand holder": ours("demand"), "NATS": ours("nats")}
WRITTEN, WRITES = "acme/killed", 20


@pytest.fixture
def unhurried(deployed: Deployed) -> Iterator[Deployed]:
    """The lane with the overlay's own window, and a last pod that is kept as long as it is by default.

    Without a gateway for that window, some 20 s, no session reaches the lane, and the autoscaler decides for zero; so
    does one that was just restarted. Both must be outlived, one after the other.
    """
    seconds = {"window": place.local_values()["window"], "scale-to-zero-pod-retention-period": "30s"}
    changes = [f"autoscaling.knative.dev/{name}={told}" for name, told in seconds.items()]
    kube.kn("service", "update", SERVICE, *(word for each in changes for word in ("--annotation-revision", each)))
    # A pod that is up goes with the revision before, and is not the one that has to stay.
    newest = kube.one("ksvc", SERVICE)["status"]["latestCreatedRevisionName"]
    kube.until(lambda: all(revision(pod) == newest for pod in kube.objects("pods", kube.WORKERS)), 150)
    yield deployed
    deployed.apply()


def revision(pod: kube.Object) -> str:
    name: str = pod["metadata"]["labels"]["serving.knative.dev/revision"]
    return name


@pytest.mark.alone
def test_every_part_may_be_killed_under_load_and_no_request_and_no_pod_of_a_lane_is_lost(unhurried: Deployed) -> None:
    # A cluster of others is not ours to break: Knative's own parts are killed on the kit's alone.
    parts = (KNATIVES if place.on_kit() else {}) | OURS
    vectors, pod = vectors_of(unhurried), one_pod(unhurried)
    over = threading.Event()
    with ThreadPoolExecutor() as threads:
        sdk = threads.submit(through_the_sdk, unhurried, vectors, over)
        try:
            account(*(load_while_killed(name, part, vectors) for name, part in parts.items()))
        finally:
            over.set()
        log.info("the SDK answered %d times", sdk.result())
    stayed = kube.one("pod", pod)
    assert "deletionTimestamp" not in stayed["metadata"], "the lane was scaled down"
    assert not any(each["restartCount"] for each in stayed["status"]["containerStatuses"])
    kube.until(lambda: all(map(kube.ready, kube.objects("ksvc"))))


def load_while_killed(name: str, part: Part, vectors: Vectors) -> Load:
    """A load in whose midst the part is killed; returns when the part is back."""
    load = Load(vectors, 120, rest_s=0.3)
    load.await_answered(30)
    # An autoscaler that says nothing keeps its lease for a minute, in which no other scales anything.
    gone = kube.kill(*part) if part is AUTOSCALER else take_away(*part)
    kube.until(partial(is_back, part, gone), 150)
    load.finish()
    log.info("%s killed: callers met %s", name, dict(load.met))
    return load


def through_the_sdk(deployed: Deployed, vectors: Vectors, over: threading.Event) -> int:
    """Ask through the SDK until it is over; how often it answered, rightly each time."""
    answered = 0
    with deployed.client() as client:
        while not over.is_set():
            text = TEXTS[answered % len(TEXTS)]
            result = client.encode(MODEL, text, wait_for_capacity=True)
            assert result.dense is not None and float(result.dense @ vectors[text]) > 0.9999
            answered += 1
    return answered


def test_a_config_service_killed_under_writes_has_written_each_once(deployed: Deployed) -> None:
    with catalogue.without_afterwards(deployed, WRITTEN), ThreadPoolExecutor() as threads:
        before, met = catalogue.epoch(deployed), list[str]()
        writing = threads.submit(write_each, deployed, WRITES, met)
        for count in (1, 10):
            wait_until(partial(lambda count: met.count("written") >= count or writing.done(), count), 150)
            take_away(*ours("config"))
        writing.result(150)
        log.info("the writer met %s", met)
        kube.until(lambda: catalogue.epoch(deployed) >= before + WRITES)
        assert catalogue.epoch(deployed) == before + WRITES


def write_each(deployed: Deployed, count: int, met: list[str]) -> None:
    """Write so many revisions of a model, each until it is written; ``met``: what came of each request."""
    url = f"{CONFIG}/v1/configs/models/{WRITTEN}"
    for number in range(count):
        headers = deployed.admin | {"Idempotency-Key": uuid.uuid4().hex}
        body = catalogue.spec(WRITTEN) | {"revision": str(number)}
        while met.count("written") == number:
            try:
                answered = httpx.put(url, json=body, headers=headers, timeout=10)
            except httpx.TransportError as error:
                met.append(type(error).__name__)
                continue
            assert answered.is_success or answered.is_server_error, answered.text
            met.append("written" if answered.is_success else str(answered.status_code))
            if answered.is_server_error:
                time.sleep(float(answered.headers.get("Retry-After", PROXY_S)))


def is_back(part: Part, gone: list[str]) -> bool:
    """Whether other pods have taken the place of those that are gone, and are ready."""
    pods = kube.objects("pods", *part)
    if part is AUTOSCALER and not any(leader().startswith(kube.name(pod)) for pod in pods):
        return False
    return bool(pods) and all(kube.ready(pod) and (kube.name(pod) not in gone or part == OURS["NATS"]) for pod in pods)


def leader() -> str:
    """The autoscaler that scales."""
    lease = kube.one("lease", "autoscaler-bucket-00-of-01", AUTOSCALER.namespace)
    return str(lease["spec"].get("holderIdentity"))
