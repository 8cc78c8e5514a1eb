"""A cold start that takes longer than Knative lets any request wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import kube
from tests.cluster.deployed import BUNDLE, SERVICE, Deployed
from tests.cluster.load import Load, account, vectors_of
from tests.cluster.session import held

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

AUTOSCALING = "autoscaling.knative.dev"
WAITS_S, STARTS_S = 10, 25


@pytest.fixture
def slow(deployed: Deployed) -> Iterator[Deployed]:
    """Its bundle's pods take `STARTS_S` before their worker begins, and requests to them may take `WAITS_S`."""
    before = kube.one("ksvc", SERVICE)["spec"]["template"]
    container = before["spec"]["containers"][0]
    node = {
        "name": "node",  # as if one had to be made first
        "image": container["image"],
        "command": ["python", "-c", f"import time; time.sleep({STARTS_S})"],
        "securityContext": container["securityContext"],
    }
    spec = before["spec"] | {
        "initContainers": [node],
        "timeoutSeconds": WAITS_S,
        "responseStartTimeoutSeconds": WAITS_S,
    }
    # Nothing of it is to be left long: its pods are killed after `WAITS_S`, however busy they are.
    short = {f"{AUTOSCALING}/window": "6s", f"{AUTOSCALING}/scale-to-zero-pod-retention-period": "0s"}
    metadata = before["metadata"] | {"annotations": before["metadata"]["annotations"] | short}
    revision = replace_template({"metadata": metadata, "spec": spec})
    deployed.to_zero()
    yield deployed
    replace_template(before)
    kube.until(lambda: not kube.objects("pods", f"serving.knative.dev/revision={revision}"), 150)


def test_a_cold_start_longer_than_a_request_may_wait_answers_everybody_once(
    deployed: Deployed, request: pytest.FixtureRequest
) -> None:
    vectors = vectors_of(deployed)
    request.getfixturevalue("slow")
    load = Load(vectors, 50)
    kube.until(lambda: bool(kube.pods()))
    pods = {kube.name(pod) for pod in kube.pods()}
    with held(BUNDLE) as session:
        assert "timeout" in session.said(), "a session waits in the activator like any request"
    account(load)
    assert {kube.name(pod) for pod in kube.pods()} == pods, "the pod that was begun at first is the one that came"


def replace_template(template: Any) -> str:
    """Give the bundle's Service a new revision; returns its name when it has the traffic."""
    change = {"op": "replace", "path": "/spec/template", "value": template}
    kube.kubectl("patch", "ksvc", SERVICE, "--type=json", "-p", json.dumps([change]))
    kube.kubectl("wait", "ksvc", SERVICE, "--for=condition=Ready", "--timeout=60s")
    return str(kube.one("ksvc", SERVICE)["status"]["latestReadyRevisionName"])
