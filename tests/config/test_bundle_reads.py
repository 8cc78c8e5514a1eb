"""What serves models, as keepers read it: by the records of what is deployed, with the models of each bundle."""

from __future__ import annotations

import msgspec
import pytest

from sie_config.api.bundle_reads import Bundles, Machine
from sie_config.deployment import bundle_spec, placement
from sie_config.model.tasks import Extract, Tasks
from sie_config.registry import Registry
from sie_sdk.errors import BundleNotFoundError
from tests.ingress.conftest import SPEC, TAGGER

THERE = placement.deployment("cpu,l4")
FREE = msgspec.structs.replace(SPEC, bundle="")
GLINER = msgspec.structs.replace(FREE, id="org/spans", family="gliner_bi", tasks=Tasks(extract=Extract("spans")))


def test_all_bundles_are_told_as_they_are_preferred_with_what_they_serve_here() -> None:
    told = Bundles(Registry([FREE, TAGGER, GLINER], deployment=THERE), lambda name: 2 * (name == "default")).rows()
    rows = [(row.bundle_id, row.status, row.model_count, row.connected_workers) for row in told.bundles]
    assert rows == [("default", "ready", 2, 2), ("gliner", "planned", 1, 0), ("sglang", "planned", 0, 0)]
    assert [row.machine_profiles for row in told.bundles] == [["cpu", "l4"], ["cpu", "l4"], ["l4"]]
    assert told.bundles_hash == bundle_spec.set_hash(THERE.bundles)
    assert told.bundles[0].adapter_count == len(THERE.bundles[0].families)


def test_a_bundle_is_told_with_what_a_service_of_it_needs() -> None:
    bundles = Bundles(Registry([GLINER, FREE], deployment=THERE), lambda _: 0)
    told = bundles.one("GLINER")
    assert (told.name, told.models, told.model_count, told.engine) == ("gliner", [GLINER.id], 1, "gliner")
    assert told.blocked_by and told.requirements[0] == "sie-knative[bundle]" and told.image == "sie-bundle-gliner"
    machines = {each.name: each for each in told.machine_profiles}
    assert machines["cpu"] == Machine("cpu", True, "", 0)
    assert machines["l4"].deployed and not machines["h100"].deployed
    assert [each.name for each in bundles.every()] == ["default", "gliner", "sglang"]
    with pytest.raises(BundleNotFoundError) as refused:
        bundles.one("none")
    assert refused.value.details["bundles"] == ["default", "gliner", "sglang"]


def test_nothing_is_told_of_what_nobody_has_told() -> None:
    bundles = Bundles(Registry([FREE]), lambda _: 0)
    assert bundles.rows().bundles == [] and bundles.every() == []
    with pytest.raises(BundleNotFoundError, match="There is none"):
        bundles.one("default")
