"""The registry of a deployment: what is behind a name runs where it is placed, and what runs nowhere says why."""

from __future__ import annotations

import msgspec
import pytest

from sie_broker.records import Lane
from sie_config.deployment import machine_profile, placement
from sie_config.deployment.placement import Deployment
from sie_config.model.tasks import Extract, Tasks
from sie_config.registry import Registry, lane_of, lanes_of
from sie_sdk.errors import BundleConflictError, ModelPlannedError, ModelUnplacedError
from tests.ingress.conftest import SPEC

CPU = placement.deployment("cpu")
FREE = msgspec.structs.replace(SPEC, bundle="", parameters=33_000_000)
LARGE = msgspec.structs.replace(FREE, id="org/large", parameters=8_000_000_000)
GLINER = msgspec.structs.replace(FREE, id="org/spans", family="gliner_bi", tasks=Tasks(extract=Extract("spans")))
WAITING = msgspec.structs.replace(FREE, id="org/clip", family="clip", status="planned", blocked_by="the image tower")


def deployed(names: str) -> Deployment:
    return msgspec.structs.replace(CPU, deployed=machine_profile.deployed(names, CPU.machine_profiles))


def lanes(*profiles: str, bundle: str = "default") -> list[Lane]:
    return [Lane("default", bundle, profile) for profile in profiles]


def test_requests_see_the_bundle_and_the_machines_and_keepers_the_spec_as_written() -> None:
    registry = Registry([FREE], deployment=deployed("l4,cpu"))
    spec = registry.resolve("counting-model")
    assert (spec.bundle, spec.machine_profiles) == ("default", ("cpu", "l4"))
    assert lanes_of(spec) == lanes("cpu", "l4") and lane_of(spec) == lanes("cpu")[0]
    assert registry.written("ORG/counting-model") == FREE
    assert registry.model(FREE.id) == spec and registry.specs() == [spec]


def test_every_lane_of_a_model_has_its_queue_and_its_hash() -> None:
    registry = Registry([FREE, LARGE], deployment=deployed("l4,cpu"))
    assert set(registry.queues()) == {(lane, spec.id) for spec in (FREE, LARGE) for lane in lanes("cpu", "l4")}
    cpu, l4 = lanes("cpu", "l4")
    assert registry.hash_of(cpu) == registry.hash_of(l4) != ""
    assert registry.waits_in(FREE.id, l4) and not registry.waits_in(FREE.id, *lanes("h100"))


def test_a_model_that_nothing_deployed_holds_is_listed_and_refused_with_what_would() -> None:
    registry = Registry([LARGE], deployment=deployed("t4"))
    with pytest.raises(ModelUnplacedError, match=r"its weights need 14\.9 GiB") as refused:
        registry.resolve(LARGE.id)
    assert refused.value.status == 501 and "Deploy l4-spot or l4" in str(refused.value)
    (listed,) = registry.specs()
    assert (listed.status, listed.bundle) == ("planned", "default") and registry.written(LARGE.id) == LARGE
    assert [*registry.queues()] == [] and registry.model(LARGE.id) == listed


def test_planned_models_and_those_of_a_planned_bundle_are_refused_with_what_they_wait_for() -> None:
    registry = Registry([GLINER, WAITING], deployment=CPU)
    for name, blocked_by in (("org/spans", CPU.bundles[1].blocked_by), ("clip", "the image tower")):
        with pytest.raises(ModelPlannedError) as refused:
            registry.resolve(name)
        assert refused.value.details["blocked_by"] == blocked_by and blocked_by in str(refused.value)
    assert [*registry.queues()] == [] and registry.bundles() == ["gliner"]
    with pytest.raises(ModelPlannedError):
        Registry([WAITING]).resolve("clip")


def test_what_is_deployed_later_places_every_model_anew() -> None:
    registry = Registry([FREE, LARGE], deployment=deployed("t4"))
    epoch = registry.epoch
    assert [lane_of(registry.resolve(FREE.id))] == lanes("t4")
    registry.deploy(deployed("l4"))
    assert registry.epoch == epoch + 1
    assert [lane_of(spec) for spec in registry.specs()] == lanes("l4", "l4")
    assert registry.resolve(LARGE.id).status == "ready"
    registry.deploy(deployed("l4"))
    assert registry.epoch == epoch + 1
    assert registry.waits_in(FREE.id, *lanes("t4"))  # where work of a moment ago may still wait
    registry.put(msgspec.structs.replace(FREE, machine_profiles=("h100",)))
    with pytest.raises(ModelUnplacedError, match="it lists h100; deployed: l4"):
        registry.resolve(FREE.id)
    registry.remove(FREE.id)
    assert registry.specs() == [registry.resolve(LARGE.id)]


def test_while_nobody_has_told_what_is_deployed_specs_are_served_where_they_say() -> None:
    registry = Registry([FREE, msgspec.structs.replace(FREE, id="org/b", bundle="own", machine_profiles=("x", "y"))])
    assert [lane_of(spec) for spec in registry.specs()] == [*lanes("x", bundle="own"), *lanes("cpu")]
    assert registry.written(FREE.id) == FREE
    registry.deploy(CPU)
    with pytest.raises(ModelUnplacedError, match="there is no bundle own"):
        registry.resolve("org/b")


def test_a_bundle_before_the_name_is_held_against_the_one_that_serves_the_model() -> None:
    registry = Registry([FREE, GLINER], deployment=CPU)
    assert registry.resolve(f"default:/{FREE.id}") == registry.resolve(FREE.id)
    with pytest.raises(BundleConflictError):
        registry.resolve(f"gliner:/{FREE.id}")
