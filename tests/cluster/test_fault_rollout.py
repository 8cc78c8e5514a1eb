"""New revisions under load: taken over by themselves, or warmed by a tag first, and gone back from."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kube
from tests.cluster.deployed import BUNDLE, SERVICE, Deployed
from tests.cluster.endings import followed
from tests.cluster.load import Load, account, one_pod, vectors_of
from tests.cluster.session import held

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")

CHANGE = "sie.dev/e2e-change"


@pytest.fixture(autouse=True)
def routed_as_before(deployed: Deployed) -> Iterator[None]:
    """All traffic goes to the latest revision again, and no tag is left."""
    yield
    kube.kn("service", "update", SERVICE, "--traffic", "@latest=100", *(("--untag", "candidate") if tags() else ()))


def test_a_rollout_under_load_loses_and_doubles_nothing(deployed: Deployed, tmp_path: Path) -> None:
    vectors = vectors_of(deployed)
    old, pod = revision(), one_pod(deployed)
    with followed(tmp_path) as endings:
        endings.follow()
        before = endings.answered(deployed)
        loads = [Load(vectors, 200, rest_s=0.5)]
        kube.kn("service", "update", SERVICE, "--annotation-revision", f"{CHANGE}={time.time_ns()}")
        assert revision() != old
        both = False
        while endings.exit_code(pod) is None:
            loads[-1].await_answered(100)
            loads.append(Load(vectors, 100, rest_s=0.5))
            endings.follow()
            both = both or {old, revision()} <= {revision_of(each) for each in kube.objects("pods", kube.WORKERS)}
        account(*loads)
        assert both, "old and new were never up at once"
        assert endings.exit_code(pod) == 0
        assert not pods_of(old) and pods_of(revision())
        asked = sum(len(load.requests) for load in loads)
        assert endings.answered(deployed) - before == asked, "something was computed twice"
    assert not any(load.met["timeout"] for load in loads), "a request waited for the end of a lease"


def test_a_candidate_is_warmed_by_its_tag_takes_the_traffic_and_is_gone_back_from(deployed: Deployed) -> None:
    vectors = vectors_of(deployed)
    old = revision()
    one_pod(deployed)
    kube.kn("service", "update", SERVICE, "--traffic", f"{old}=100")
    kube.kn("service", "update", SERVICE, "--annotation-revision", f"{CHANGE}={time.time_ns()}")
    new = kube.one("ksvc", SERVICE)["status"]["latestCreatedRevisionName"]
    kube.kn("service", "update", SERVICE, "--tag", f"{new}=candidate")
    assert new != old and not pods_of(new), "a candidate starts when it is called"
    load = Load(vectors, 300, rest_s=0.5)
    with held(BUNDLE.replace(SERVICE, f"candidate-{SERVICE}", 1)):
        kube.until(lambda: is_worker(deployed, pods_of(new)), 120)
        assert is_worker(deployed, pods_of(old)), "the candidate took nobody's place"
        kube.kn("service", "update", SERVICE, "--traffic", f"{new}=100")
        kube.until(lambda: works(deployed) and not pods_of(old), 150)
    assert is_worker(deployed, pods_of(new)), "it was there before the traffic, and stayed"
    kube.kn("service", "update", SERVICE, "--traffic", f"{old}=100")
    again = Load(vectors, 100, rest_s=0.5)
    kube.until(lambda: works(deployed) and is_worker(deployed, pods_of(old)), 150)
    account(load, again)


def works(deployed: Deployed) -> bool:
    """Ask for something, so that the lane has work however fast the load was done."""
    return deployed.encode("one", Prefer="wait=60").is_success


def revision() -> str:
    """The revision that requests go to."""
    (target,) = (each for each in kube.one("ksvc", SERVICE)["status"]["traffic"] if each.get("percent") == 100)
    return str(target["revisionName"])


def revision_of(pod: kube.Object) -> str:
    """The revision that a pod is of."""
    return str(pod["metadata"]["labels"]["serving.knative.dev/revision"])


def pods_of(name: str) -> list[str]:
    """The pods of a revision that are not on their way out."""
    return [kube.name(pod) for pod in kube.pods() if revision_of(pod) == name]


def is_worker(deployed: Deployed, pods: list[str]) -> bool:
    """Whether one of these pods is a ready worker."""
    ready = [row["name"] for row in deployed.workers() if row["state"] == "ready"]
    return any(worker.startswith(pod) for worker in ready for pod in pods)


def tags() -> list[str]:
    """The tags of the Service's routes."""
    return [each["tag"] for each in kube.one("ksvc", SERVICE)["spec"].get("traffic", []) if "tag" in each]
