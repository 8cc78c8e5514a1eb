"""Bundles and machine profiles as files: what they may say, and that every fault of them is told at once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from sie_bundle.models import family
from sie_bundle.settings import Settings
from sie_config.deployment import bundle_spec, machine_profile
from sie_config.deployment.bundle_spec import BundleSpec
from sie_config.model.tasks import Extract, Score, Tasks
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

ROOT = Path(__file__).parent.parent.parent
BUNDLES = {bundle.id: bundle for bundle in bundle_spec.load()}
PROFILES = {profile.name: profile for profile in machine_profile.load()}
WHOLE = msgspec.to_builtins(BUNDLES["default"])


def test_the_default_bundle_runs_every_family_that_the_engine_has_a_record_of() -> None:
    assert BUNDLES["default"].families == (*family.FAMILIES, family.GLINER)
    assert BUNDLES["default"].status == "ready"


def test_the_requirements_of_bundles_are_extras_of_this_project_and_pins() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for bundle in BUNDLES.values():
        assert bundle.requirements[0] == "sie-knative[bundle]" and "bundle" in extras
        assert all(">=" in requirement for requirement in bundle.requirements[1:])


def test_the_bundles_are_read_in_the_order_in_which_they_are_preferred() -> None:
    assert list(BUNDLES) == ["default", "gliner", "sglang"]
    later = msgspec.structs.replace(BUNDLES["gliner"], status="ready", blocked_by="", priority=5)
    assert [each.id for each in bundle_spec.preferred([*BUNDLES.values(), later])][:2] == ["gliner", "default"]


def test_what_a_model_can_do_counts_extraction_by_its_kind() -> None:
    assert bundle_spec.tasks_of(EVERYTHING) == {"dense", "sparse", "multivector", "score"}
    assert bundle_spec.tasks_of(TAGGER) == {"entities"}
    both = msgspec.structs.replace(SPEC, tasks=Tasks(score=Score(), extract=Extract("spans")))
    assert bundle_spec.tasks_of(both) == {"score", "spans"}
    kinds = msgspec.json.schema(Extract)["$defs"]["Extract"]["properties"]["kind"]["enum"]
    assert set(kinds) < set(get_args(bundle_spec.Task))


def test_a_bundle_runs_a_model_whose_family_tasks_and_inputs_it_has_all() -> None:
    default = BUNDLES["default"]
    assert default.runs(SPEC) and default.runs(EVERYTHING)
    assert not default.runs(msgspec.structs.replace(SPEC, family="gliner_bi"))
    assert not default.runs(msgspec.structs.replace(SPEC, inputs=("text", "image")))
    assert not default.runs(msgspec.structs.replace(TAGGER, tasks=Tasks(extract=Extract("relations"))))


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (
            {"priority": -1, "engine": "fast", "extra": 1},
            ["extra: unknown field", "priority: ", "engine: 'fast' is not one of"],
        ),
        ({"tasks": ["dense", "paint"], "id": "Big One"}, ["tasks[1]: 'paint' is not one of", "id: "]),
        ({"families": [], "machine_profiles": ["a b"]}, ["families: ", "machine_profiles[0]: "]),
        ({"status": "planned"}, ["blocked_by"]),
        ({"blocked_by": "nothing"}, ["blocked_by"]),
    ],
    ids=str,
)
def test_all_faults_of_a_bundle_are_told_at_once(change: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        bundle_spec.parse(WHOLE | change, origin="b.yaml")
    for fault in faults:
        assert fault in str(refused.value)


def test_what_a_bundle_must_say_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"id: missing; .*engine: missing; .*families: missing; "):
        bundle_spec.parse({}, origin="b.yaml")
    with pytest.raises(ConfigurationError, match="is not a mapping"):
        bundle_spec.parse(["default"], origin="b.yaml")


def test_the_faults_of_all_files_of_a_folder_are_told_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("id: [")
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(WHOLE | {"priority": "high"}))
    for name in ("c.yaml", "d.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(WHOLE))
    with pytest.raises(ConfigurationError) as refused:
        bundle_spec.load(tmp_path)
    for said in ("a.yaml cannot be read", "b.yaml is wrong: priority", "d.yaml defines default a second time"):
        assert said in str(refused.value)
    with pytest.raises(ConfigurationError, match="no bundle"):
        bundle_spec.load(tmp_path / "nowhere")


def test_the_hash_of_the_bundles_is_the_protocol_s() -> None:
    one, two = (
        BundleSpec("b", "packed", ("z", "a"), ("dense",), "i", ("r",), priority=2),
        BundleSpec("a", "packed", ("m",), ("dense",), "i", ("r",), priority=7),
    )
    told = [{"adapters": ["m"], "name": "a", "priority": 7}, {"adapters": ["a", "z"], "name": "b", "priority": 2}]
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    assert bundle_spec.set_hash([one, two]) == bundle_spec.set_hash([two, one])
    assert bundle_spec.set_hash([one, two]) == hashlib.sha256(text.encode()).hexdigest()
    assert bundle_spec.set_hash([one]) != bundle_spec.set_hash([one, two])


def test_the_machine_profiles_are_those_of_the_protocol_s_deployments_the_cheapest_first() -> None:
    names = ["cpu", "t4", "l4-spot", "l4", "a10g", "a100-40gb", "a100-80gb", "h100", "h200"]
    assert list(PROFILES) == names
    rooms = [PROFILES[name].model_bytes for name in ("t4", "l4", "a100-40gb", "a100-80gb", "h200")]
    assert rooms == sorted(rooms)


def test_every_machine_with_a_gpu_asks_kubernetes_for_it_and_finds_its_nodes() -> None:
    for profile in PROFILES.values():
        assert set(profile.requests) == {"cpu", "memory"}
        assert profile.limits.get("nvidia.com/gpu", "0") == str(profile.gpus)
        for cloud, nodes in profile.nodes.items():
            selects, tolerates = bool(nodes.node_selector), {each.key for each in nodes.tolerations}
            assert (selects, "nvidia.com/gpu" in tolerates) == (bool(profile.gpus), bool(profile.gpus)), (
                profile,
                cloud,
            )
    spot = PROFILES["l4-spot"].nodes["gke"]
    assert spot.node_selector["cloud.google.com/gke-spot"] == "true"
    assert "cloud.google.com/gke-spot" not in PROFILES["l4"].nodes["gke"].node_selector


def test_no_two_machine_profiles_of_a_cloud_find_the_same_nodes() -> None:
    for cloud in ("gke", "eks"):
        found = [p.nodes[cloud].node_selector for p in PROFILES.values() if p.gpus and cloud in p.nodes]
        assert len({json.dumps(each, sort_keys=True) for each in found}) == len(found)


def test_the_settings_of_a_machine_profile_are_a_worker_s_own() -> None:
    for profile in PROFILES.values():
        worker = settings.read(Settings, profile.environment)
        assert (worker.profile, worker.device, worker.precision) == (profile.name, profile.device, profile.precision)
        if profile.memory_bytes:
            assert 0 < worker.model_bytes == profile.model_bytes < profile.memory_bytes
    assert PROFILES["l4"].environment["SIE_DEVICE"] == "cuda:0"
    assert "SIE_MODEL_BYTES" not in PROFILES["cpu"].environment


def test_the_faults_of_all_machine_profiles_are_told_together(tmp_path: Path) -> None:
    profile = msgspec.to_builtins(PROFILES["l4"])
    wrong = [
        profile | {"gpus": 2},
        profile | {"name": "x", "limits": {"cpu": "many"}, "device": "tpu"},
        profile | {"name": "y", "device": "cpu"},
        profile,
    ]
    path = tmp_path / "machine_profiles.yaml"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ConfigurationError) as refused:
        machine_profile.load(path)
    for said in (
        "l4.limits.nvidia.com/gpu: not 2",
        "[1] is wrong: device: ",
        "limits.cpu",
        "y.gpus",
        "l4 a second time",
    ):
        assert said in str(refused.value), said
    path.write_text("l4: {}")
    with pytest.raises(ConfigurationError, match="not a list"):
        machine_profile.load(path)
    path.write_text("l4: [")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        machine_profile.load(path)


def test_deployed_machine_profiles_come_in_the_order_of_the_file() -> None:
    known = tuple(PROFILES.values())
    assert machine_profile.deployed(" H100, cpu,l4,,cpu", known) == ("cpu", "l4", "h100")
    with pytest.raises(ConfigurationError, match="SIE_MACHINE_PROFILES names b300, tpu"):
        machine_profile.deployed("tpu,cpu,b300", known)
    with pytest.raises(ConfigurationError, match="names no machine profile"):
        machine_profile.deployed(" ,", known)
