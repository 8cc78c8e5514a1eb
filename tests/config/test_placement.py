"""Placement: which bundle serves a model and where, and what is said where nothing suits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog
from sie_config.deployment import machine_profile, placement
from sie_config.deployment.bundle_spec import BundleSpec
from sie_config.deployment.placement import Deployment, Placement, place
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Extract, Tasks
from sie_sdk.errors import ConfigurationError
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

CPU = placement.deployment("cpu")
EVERYWHERE = placement.deployment(",".join(profile.name for profile in CPU.machine_profiles))
SMALL = msgspec.structs.replace(SPEC, bundle="", parameters=33_000_000)
LARGE = msgspec.structs.replace(SMALL, id="org/large", parameters=8_000_000_000)
GLINER = msgspec.structs.replace(SMALL, family="gliner_bi", tasks=Tasks(extract=Extract("spans")))


def deployed(names: str) -> Deployment:
    return msgspec.structs.replace(CPU, deployed=machine_profile.deployed(names, CPU.machine_profiles))


def with_bundles(*bundles: BundleSpec) -> Deployment:
    return msgspec.structs.replace(CPU, bundles=bundles)


def test_a_model_is_served_by_the_ready_bundle_of_the_lowest_number_that_runs_it() -> None:
    (default, *_) = CPU.bundles
    other = msgspec.structs.replace(default, id="other", priority=5, families=("bert",), tasks=("dense",))
    both = with_bundles(default, other)
    assert place(SMALL, both).bundle == "other"
    assert place(msgspec.structs.replace(EVERYTHING, bundle=""), both).bundle == "default"  # other is no reranker
    assert place(msgspec.structs.replace(SMALL, family="qwen3"), both).bundle == "default"
    planned = msgspec.structs.replace(other, status="planned", blocked_by="time")
    assert place(SMALL, with_bundles(default, planned)).bundle == "default"


def test_a_bundle_that_the_spec_names_serves_it_whatever_it_lists() -> None:
    adapter = msgspec.structs.replace(SMALL, family="static-embedding")
    assert place(msgspec.structs.replace(adapter, bundle="Default"), CPU) == Placement("default", ("cpu",))
    assert place(adapter, CPU).why == "no bundle runs family static-embedding with dense"
    unknown = place(msgspec.structs.replace(adapter, bundle="none"), CPU)
    assert (unknown.machine_profiles, unknown.why) == ((), "there is no bundle none")
    assert unknown.hint == "There is default, gliner, sglang."


def test_a_pool_of_its_own_needs_workers_that_are_started_in_it() -> None:
    own = msgspec.structs.replace(SMALL, pool="support")
    assert place(own, CPU).machine_profiles == ("cpu",)
    assert place(own, placement.deployment(pools="default, support")).machine_profiles == ("cpu",)
    found = place(own, placement.deployment(pools="default"))
    assert (found.machine_profiles, found.planned) == ((), False)
    assert found.why == "no worker is started in its pool support; deployed: default" and "X-SIE-Pool" in found.hint
    assert place(SMALL, placement.deployment(pools="default")).machine_profiles == ("cpu",)


def test_every_model_of_the_catalogue_is_placed_on_a_laptop_or_says_what_it_waits_for() -> None:
    for spec in catalog.load().values():
        found = place(spec, CPU)
        assert found.machine_profiles == ("cpu",) or (found.planned and found.why), spec.id


def test_a_model_runs_on_the_deployed_machines_of_its_bundle_that_hold_it_the_cheapest_first() -> None:
    assert place(SMALL, deployed("h100,l4,cpu")).machine_profiles == ("cpu", "l4", "h100")
    assert place(LARGE, deployed("h100,l4,t4")).machine_profiles == ("l4", "h100")
    huge = msgspec.structs.replace(LARGE, parameters=30_000_000_000)
    assert place(huge, EVERYWHERE).machine_profiles == ("a100-80gb", "h100", "h200", "cpu")


def test_a_large_model_goes_to_a_cpu_only_behind_every_machine_that_holds_it() -> None:
    assert place(LARGE, deployed("cpu,l4")).machine_profiles == ("l4", "cpu")
    assert place(LARGE, deployed("cpu,t4")).machine_profiles == ("cpu",)
    assert place(LARGE, CPU).machine_profiles == ("cpu",)
    by_bytes = msgspec.structs.replace(SMALL, parameters=0, bytes=3 * 2**30)
    assert place(by_bytes, deployed("cpu,l4")).machine_profiles == ("l4", "cpu")


def test_what_a_model_is_computed_with_decides_how_much_memory_it_needs() -> None:
    l4 = next(profile for profile in CPU.machine_profiles if profile.name == "l4")
    assert placement.weights_bytes(LARGE, l4) == 16_000_000_000 and placement.holds(l4, LARGE)
    wide = msgspec.structs.replace(LARGE, precision="float32")
    assert placement.weights_bytes(wide, l4) == 32_000_000_000 and not placement.holds(l4, wide)
    assert placement.weights_bytes(msgspec.structs.replace(LARGE, parameters=0, bytes=7), l4) == 7


def test_a_spec_that_lists_machines_is_served_on_those_that_are_deployed_in_its_order() -> None:
    listed = msgspec.structs.replace(LARGE, machine_profiles=("h100", "t4", "l4", "h100"))
    assert place(listed, deployed("cpu,l4,t4,h100")).machine_profiles == ("h100", "t4", "l4")
    nowhere = place(listed, CPU)
    assert nowhere.machine_profiles == () and not nowhere.planned
    assert nowhere.why == (
        "no machine profile that its spec lists is deployed: it lists h100, t4, l4, h100; deployed: cpu"
    )
    assert nowhere.hint == "Deploy h100 or t4 or l4 (SIE_MACHINE_PROFILES)."


def test_a_model_that_no_deployed_machine_holds_says_what_it_needs_and_what_would() -> None:
    found = place(LARGE, deployed("t4"))
    assert (found.bundle, found.machine_profiles) == ("default", ())
    assert found.why == (
        "no deployed machine profile holds it: its weights need 14.9 GiB; deployed: t4 with room for 11.2 GiB"
    )
    assert found.hint == "Deploy l4-spot or l4 or a10g (SIE_MACHINE_PROFILES)."
    (warning,) = placement.warnings(LARGE, deployed("t4"))
    assert warning == f"N{found.why[1:]}. {found.hint}"


def test_a_bundle_that_does_not_run_on_what_is_deployed_says_so() -> None:
    (default, *_) = CPU.bundles
    on_gpus = msgspec.structs.replace(default, machine_profiles=("l4",))
    found = place(SMALL, with_bundles(on_gpus))
    assert "deployed: cpu, where bundle default does not run" in found.why and "Deploy l4 " in found.hint
    assert (
        place(msgspec.structs.replace(SMALL, machine_profiles=("cpu",)), with_bundles(on_gpus)).machine_profiles == ()
    )


def test_models_of_a_planned_bundle_and_planned_models_are_planned() -> None:
    found = place(GLINER, CPU)
    assert (found.bundle, found.machine_profiles, found.planned) == ("gliner", (), True)
    assert "GLiNER" in found.why
    assert [*placement.warnings(GLINER, CPU)] == [
        f"Bundle gliner is planned: requests are refused until there is {found.why}."
    ]
    waiting = msgspec.structs.replace(SMALL, family="clip", status="planned", blocked_by="the image tower")
    assert place(waiting, CPU) == Placement("", planned=True, why="the image tower")
    assert not [*placement.warnings(waiting, CPU)]


def test_a_writer_is_warned_of_machines_nobody_knows_and_of_sizes_nobody_told() -> None:
    unknown = msgspec.structs.replace(SMALL, machine_profiles=("cpu", "quantum"))
    (warning,) = placement.warnings(unknown, CPU)
    assert warning.startswith("machine_profiles: quantum is no machine profile; known: cpu, t4, ")
    unmeasured = msgspec.structs.replace(SMALL, parameters=0)
    (warning,) = placement.warnings(unmeasured, deployed("l4"))
    assert "Neither parameters nor bytes" in warning
    assert not [*placement.warnings(unmeasured, CPU)] and not [*placement.warnings(SMALL, EVERYWHERE)]


def test_requests_see_where_a_model_is_served_and_a_model_served_nowhere_is_planned() -> None:
    seen = placement.served(SMALL, place(SMALL, CPU))
    assert (seen.bundle, seen.machine_profiles, seen.status) == ("default", ("cpu",), "ready")
    nowhere = placement.served(LARGE, place(LARGE, deployed("t4")))
    assert (nowhere.status, nowhere.machine_profiles) == ("planned", ())
    assert nowhere.blocked_by.startswith("no deployed machine profile holds it")


def test_a_deployment_is_the_same_after_its_way_through_the_bucket() -> None:
    assert placement.decode(placement.encode(EVERYWHERE)) == EVERYWHERE
    with pytest.raises(msgspec.DecodeError):
        placement.decode(b'{"bundles": []}')
    with pytest.raises(ConfigurationError, match="no machine profile"):
        placement.deployment("cpu,quantum")


NAMES = [profile.name for profile in CPU.machine_profiles]
SPECS = st.builds(
    lambda parameters, precision, family, listed: msgspec.structs.replace(
        SMALL, parameters=parameters, precision=precision, family=family, machine_profiles=listed
    ),
    st.integers(0, 10**11),
    st.sampled_from(["auto", "float32", "float16"]),
    st.sampled_from(["bert", "qwen3", "gliner", "nothing"]),
    st.one_of(st.just(()), st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)),
)


@given(SPECS, st.sets(st.sampled_from(NAMES), min_size=1), st.sampled_from(NAMES))
def test_a_model_is_only_on_deployed_machines_that_hold_it_and_one_more_machine_takes_none_away(
    spec: ModelSpec, names: set[str], more: str
) -> None:
    there = deployed(",".join(names))
    found = place(spec, there)
    known = {profile.name: profile for profile in there.machine_profiles}
    assert set(found.machine_profiles) <= names
    assert spec.machine_profiles or all(placement.holds(known[name], spec) for name in found.machine_profiles)
    assert bool(found.machine_profiles) != bool(found.why)
    assert set(found.machine_profiles) <= set(place(spec, deployed(",".join({*names, more}))).machine_profiles)


@given(SPECS, st.sets(st.sampled_from(NAMES), min_size=1))
def test_the_spec_that_requests_see_is_placed_where_it_is(spec: ModelSpec, names: set[str]) -> None:
    there = deployed(",".join(names))
    found = place(spec, there)
    seen = placement.served(spec, found)
    assert bool(found.machine_profiles) == (seen.status == "ready")
    if found.machine_profiles:
        assert place(seen, there) == found


def test_tags_need_no_bundle_of_their_own() -> None:
    assert place(msgspec.structs.replace(TAGGER, bundle=""), CPU).bundle == "default"
