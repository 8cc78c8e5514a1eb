"""No GPU is free: the bundle's pod waits for one, callers are told how long that may take, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator

import pytest

from tests.cluster import changes, kube, place
from tests.cluster.deployed import SERVICE, Deployed
from tests.cluster.jobs import ask, jobs_of, settle
from tests.cluster.load import TEXTS, vectors_of

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")

GPU = "nvidia.com/gpu"
HOLDER = "gpu-holder"
LATE_S = 30
"""So much later than it was expected to take at first a start is looked at again."""


@pytest.fixture
def one_gpu() -> Iterator[None]:
    """A node that says it has one: placement is all that this is about."""
    if not place.on_kit():
        pytest.skip("only the kit's node can pretend to have a GPU")
    _pretend("1")
    try:
        yield
    finally:
        _pretend(None)


def test_without_a_free_gpu_work_waits_and_is_answered_when_one_is_freed(at_zero: Deployed, one_gpu: None) -> None:
    with changes.service("--limit", f"{GPU}-") as change, contextlib.ExitStack() as until_freed:
        until_freed.enter_context(taken(image()))
        revision = change("--limit", f"{GPU}=1")
        jobs = jobs_of(TEXTS[:20])
        began = time.monotonic()
        kube.until(lambda: unschedulable(revision))
        assert kube.ready(kube.one("ksvc", SERVICE)), "the Service stays ready"
        grows_with_the_delay(jobs[TEXTS[0]], began)
        assert unschedulable(revision) and len(kube.pods()) == 1
        until_freed.close()
        freed = time.monotonic()
        settle(jobs, vectors_of(at_zero))
        log.info("answered %.1f s after the GPU was freed", time.monotonic() - freed)


@contextlib.contextmanager
def taken(image: str) -> Iterator[None]:
    """Somebody else has the GPU."""
    container = {
        "name": HOLDER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import time; time.sleep(600)"],
        "resources": {"limits": {GPU: "1"}},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": HOLDER}, "spec": spec}
    kube.kubectl("apply", "-f", "-", given=json.dumps(pod))
    try:
        kube.kubectl("wait", "pod", HOLDER, "--for=condition=Ready", "--timeout=60s")
        yield
    finally:
        kube.kubectl("delete", "pod", HOLDER, "--timeout=60s")


def grows_with_the_delay(job: str, began: float) -> None:
    """Of a start that is late its caller is told half of what it is late, whatever was expected of it at first."""
    expected = retry_after(job)
    while (waited := time.monotonic() - began) < expected + LATE_S:
        time.sleep(2)
    told = retry_after(job)
    log.info("Retry-After was %d s, and after %.0f s it is %d s", expected, waited, told)
    assert told >= min(120, (waited - expected) / 2) - 2, "an answer was promised too soon"


def retry_after(job: str) -> int:
    """When its caller is told to come again."""
    answer = ask("GET", job)
    assert answer.status_code == 202, answer.text
    return int(answer.headers["retry-after"])


def unschedulable(revision: str) -> bool:
    """Whether the one pod of a revision waits for a GPU."""
    return [
        condition["message"]
        for pod in kube.objects("pods", f"serving.knative.dev/revision={revision}")
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and GPU in condition["message"]
    ] != []


def image() -> str:
    """The bundle's."""
    return str(kube.one("ksvc", SERVICE)["spec"]["template"]["spec"]["containers"][0]["image"])


def _pretend(count: str | None) -> None:
    """That the node has so many; None: it knows of none."""
    (node,) = (kube.name(each) for each in kube.objects("nodes", namespace=""))
    patch = {"status": {"capacity": {GPU: count}, "allocatable": {GPU: count}}}
    kube.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(patch), namespace=None)
