"""The platform reached from a machine that is no part of the cluster, as knative/README.md says, and pods for what only
they can tell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest

from tests.cluster import kube, page, place
from tests.cluster.deployed import Deployed
from tests.cluster.gateway import GATEWAY, forwarded
from tests.cluster.place import NAMESPACE
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

PAGE = "knative/README.md"


def test_every_recipe_of_the_page_does_what_it_says(deployed: Deployed, tmp_path: Path) -> None:
    namespace, _, service = GATEWAY.partition("/")
    assert f"\nkubectl -n {namespace} port-forward {service} 8081:80\n" in (place.ROOT / PAGE).read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with forwarded() as proxy:
        for recipe in page.recipes(PAGE, {"sie": NAMESPACE, "8081": proxy.rpartition(":")[2]}, "Reach it"):
            page.run(recipe, PAGE, tmp_path, {"PATH": path})


def test_each_ingress_tells_its_metrics_past_queue_proxy(deployed: Deployed) -> None:
    with deployed.client() as client:
        client.encode(MODEL, "a cat")
    found = filter(kube.ready, kube.pods("app.kubernetes.io/name=sie-ingress"))
    pods = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    told = [httpx.get(f"http://{pod['status']['podIP']}:8080/metrics", timeout=10).text for pod in pods]
    assert told and all("sie_ingress_requests_total" in each for each in told)
    counted = [line for each in told for line in each.splitlines() if line.startswith("sie_ingress_requests_total{")]
    assert any('operation="encode"' in line and not line.endswith(" 0.0") for line in counted)


def test_what_the_secret_for_the_hub_holds_is_in_a_workers_environment(at_zero: Deployed) -> None:
    kube.kubectl("create", "secret", "generic", "sie-hub", "--from-literal=HF_TOKEN=hf_of_a_test")
    try:
        with at_zero.client() as client:
            client.encode(MODEL, "a cat", wait_for_capacity=True)
        kube.until(lambda: any(map(kube.ready, kube.pods())))
        pod = next(filter(kube.ready, kube.pods()))
        asked = (
            "exec",
            kube.name(pod),
            "-c",
            "bundle",
            "--",
            "python",
            "-c",
            "import os; print(os.environ['HF_TOKEN'])",
        )
        assert kube.kubectl(*asked).strip() == "hf_of_a_test"
    finally:
        kube.kubectl("delete", "secret", "sie-hub")
