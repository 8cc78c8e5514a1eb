"""The platform reached from a machine that is no part of the cluster, as knative/README.md says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster import page, place
from tests.cluster.deployed import Deployed
from tests.cluster.gateway import GATEWAY, forwarded
from tests.cluster.place import NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

PAGE = "knative/README.md"


def test_every_recipe_of_the_page_does_what_it_says(deployed: Deployed, tmp_path: Path) -> None:
    namespace, _, service = GATEWAY.partition("/")
    assert f"\nkubectl -n {namespace} port-forward {service} 8081:80\n" in (place.ROOT / PAGE).read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with forwarded() as proxy:
        for recipe in page.recipes(PAGE, {"sie": NAMESPACE, "8081": proxy.rpartition(":")[2]}, "Reach it"):
            page.run(recipe, PAGE, tmp_path, {"PATH": path})
