"""``kn`` does what people expect of it, and what docs/kn.md says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kube, page
from tests.cluster.deployed import SERVICE, Deployed
from tests.cluster.place import NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

PAGE = "docs/kn.md"
REVISIONS = 9
"""At most so many are made by the page."""


@pytest.fixture(autouse=True)
def as_it_was(deployed: Deployed) -> Iterator[None]:
    """Afterwards the Service is what the overlay says, whatever a recipe left undone."""
    yield
    traffic = [{"latestRevision": True, "percent": 100}]
    kube.kubectl("patch", "ksvc", SERVICE, "--type=merge", "-p", json.dumps({"spec": {"traffic": traffic}}))
    deployed.apply()


def template() -> kube.Object:
    """What the Service's pods are made of, but for ``kn``'s note of when it was there."""
    made: kube.Object = kube.one("ksvc", SERVICE)["spec"]["template"]
    made["metadata"]["annotations"].pop("client.knative.dev/updateTimestamp", None)
    return made


def latest() -> int:
    """The number of the Service's newest revision."""
    return int(kube.one("ksvc", SERVICE)["status"]["latestReadyRevisionName"].rpartition("-")[2])


def test_every_recipe_of_the_page_does_what_it_says(deployed: Deployed, tmp_path: Path) -> None:
    first = latest()
    revisions = {f"{SERVICE}-{n:05d}": f"{SERVICE}-{first + n - 1:05d}" for n in range(1, REVISIONS + 1)}
    names = {"sie": NAMESPACE, "knative/overlays/local": str(deployed.overlay)} | revisions
    environment = {"KUBECONFIG": str(page.own_context(tmp_path))}
    for recipe in page.recipes(PAGE, names):
        page.run(recipe, PAGE, tmp_path, environment)


def test_an_apply_undoes_what_the_overlay_says_and_keeps_what_it_does_not(deployed: Deployed) -> None:
    before = template()
    current = f"{SERVICE}-{latest():05d}"
    kube.kn("service", "update", SERVICE, "--traffic", f"{current}=100", "--tag", f"{current}=good")
    kube.kn("service", "update", SERVICE, "--scale", "1..9", "--env", "SIE_LOG_LEVEL=DEBUG", "--no-wait")
    kube.kn("service", "update", SERVICE, "--annotation-revision", "example.org/x=1", "--label", "example.org=1")
    deployed.apply()
    applied, traffic = template(), kube.one("ksvc", SERVICE)["spec"]["traffic"]
    assert applied["spec"] == before["spec"]
    assert applied["metadata"]["annotations"] == before["metadata"]["annotations"] | {"example.org/x": "1"}
    assert applied["metadata"]["labels"] == before["metadata"]["labels"] | {"example.org": "1"}
    assert [(each["revisionName"], each["percent"], each["tag"]) for each in traffic] == [(current, 100, "good")]
    words = ("--traffic", "@latest=100", "--untag", "good", "--label", "example.org-")
    kube.kn("service", "update", SERVICE, *words, "--annotation", "example.org/x-")
    assert template() == before
