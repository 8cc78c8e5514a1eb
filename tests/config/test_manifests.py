"""Bundles as Knative Services, and what the values of an overlay make of the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from sie_broker.jetstream import permissions
from sie_broker.jetstream.streams import Limits
from sie_broker.records import Lane
from sie_config.cli.manifests import manifests as command
from sie_config.deployment import component, machine_profile, manifests, placement, pod_settings, values
from sie_config.deployment.values import IngressScale, Nats, Values, Weights
from sie_sdk.errors import ConfigurationError

LANES = {"cpu": values.Lane(max_scale=4), "l4-spot": values.Lane(max_scale=8)}
GKE = Values(cloud="gke", registry="example.org/sie", tag="1", machine_profiles=LANES)


def with_values(**changes: Any) -> Values:
    return msgspec.structs.replace(GKE, **changes)


def services(told: Values) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in manifests.services(manifests.deployment(told), told)}


def container(service: Any) -> Any:
    (only,) = service["spec"]["template"]["spec"]["containers"]
    return only


def environment(service: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(service)["env"] if "value" in each}


def written(folder: Path, text: str) -> Path:
    (folder / values.FILE).write_text(text)
    return folder


MINIMAL = "cloud: local\nregistry: dev.local\ntag: dev\nmachine_profiles: {cpu: {}}\n"


def test_there_is_a_service_for_each_bundle_that_serves_and_each_deployed_machine_profile() -> None:
    assert list(services(GKE)) == ["default-cpu", "default-l4-spot"]


def test_a_bundle_has_a_service_on_none_but_the_machine_profiles_it_runs_on() -> None:
    there = manifests.deployment(GKE)
    (default, *_) = there.bundles
    small = msgspec.structs.replace(default, id="small", machine_profiles=("cpu", "h100"))
    found = manifests.services(placement.Deployment((small,), there.machine_profiles, there.deployed), GKE)
    assert [each["metadata"]["name"] for each in found] == ["small-cpu"]


def test_the_demand_holders_address_leads_to_the_service_of_each_lane() -> None:
    for lane in (Lane("default", "default", "cpu"), Lane("default", "default", "l4-spot")):
        url = GKE.demand_url.format(bundle=lane.bundle, profile=lane.profile, pool=lane.pool)
        name = url.removeprefix("http://").removesuffix(".sie.svc.cluster.local")
        assert environment(services(GKE)[name])["SIE_PROFILE"] == lane.profile


def test_held_sessions_and_nothing_else_decide_how_many_pods_there_are() -> None:
    template = services(GKE)["default-l4-spot"]["spec"]["template"]
    told = {name.removeprefix("autoscaling.knative.dev/"): value for name, value in annotated(template).items()}
    assert told == {
        "target": "2",
        "target-utilization-percentage": "100",
        "target-burst-capacity": "-1",
        "initial-scale": "0",
        "min-scale": "0",
        "max-scale": "8",
        "window": "60s",
        "scale-down-delay": "5m",
        "scale-to-zero-pod-retention-period": "30s",
        "serving.knative.dev/progress-deadline": "1800s",
    }
    spec = template["spec"]
    assert (spec["containerConcurrency"], spec["timeoutSeconds"], spec["responseStartTimeoutSeconds"]) == (0, 600, 600)


def annotated(template: Any) -> dict[str, str]:
    found: dict[str, str] = template["metadata"]["annotations"]
    return found


def test_a_gpu_bundle_finds_the_nodes_of_its_cloud() -> None:
    spec = services(GKE)["default-l4-spot"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "true",
    }
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    on_eks = services(with_values(cloud="eks"))["default-l4-spot"]["spec"]["template"]["spec"]
    assert on_eks["nodeSelector"] == {"sie.dev/machine-profile": "l4-spot"}
    assert container(services(GKE)["default-l4-spot"])["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_a_gpu_bundle_has_the_image_with_cuda_and_the_settings_of_its_machine() -> None:
    service = services(GKE)["default-l4-spot"]
    assert container(service)["image"] == "example.org/sie/sie-bundle-cuda:1"
    assert container(services(GKE)["default-cpu"])["image"] == "example.org/sie/sie-bundle:1"
    (profile,) = [each for each in machine_profile.load() if each.name == "l4-spot"]
    assert profile.environment.items() <= environment(service).items()


def test_models_of_a_cpu_bundle_take_half_of_its_pods_memory_at_most() -> None:
    small = values.Lane(requests={"memory": "3Gi"}, limits={"memory": "3Gi"})
    told = environment(services(with_values(machine_profiles={"cpu": small}))["default-cpu"])
    assert (told["SIE_MODEL_BYTES"], told["SIE_HOST_BYTES"]) == (str(3 * 2**29), str(3 * 2**28))


def test_settings_of_the_values_come_before_what_follows_from_the_machine() -> None:
    told = with_values(settings={"bundle": {"SIE_PRECISION": "float32"}, "demand": {"SIE_QUIET_S": "5"}})
    assert environment(services(told)["default-l4-spot"])["SIE_PRECISION"] == "float32"
    assert component.settings_of(told)["demand"]["SIE_QUIET_S"] == "5"


def test_who_takes_a_request_and_who_sends_its_result_allow_the_same_sinks() -> None:
    told = component.settings_of(with_values(reply_sinks=["http://a.example/", "https://b.example/x"]))
    both = {told[each]["SIE_REPLY_SINKS"] for each in ("ingress", "demand")}
    assert both == {"http://a.example/,https://b.example/x"}
    assert "SIE_REPLY_SINKS" not in told["config"]


@pytest.mark.parametrize(("quantity", "amount"), [("3Gi", 3 * 2**30), ("1.5k", 1500), ("7", 7), ("2T", 2 * 10**12)])
def test_quantities_are_read_as_kubernetes_means_them(quantity: str, amount: int) -> None:
    assert manifests.in_bytes(quantity) == amount


@pytest.mark.parametrize("bundle", ["9lives", "a" * 60])
def test_a_name_that_kubernetes_would_refuse_is_refused_here(bundle: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be named"):
        manifests.service_name(bundle, "cpu")


def test_a_machine_profile_that_a_cloud_does_not_have_is_refused_by_name() -> None:
    told = with_values(machine_profiles={"a10g": values.Lane()})
    with pytest.raises(ConfigurationError, match="gke has no machine of profile a10g"):
        services(told)


def test_a_pod_cannot_be_given_another_number_of_gpus_than_its_machine_has() -> None:
    told = with_values(machine_profiles={"l4": values.Lane(limits={"nvidia.com/gpu": "2"})})
    with pytest.raises(ConfigurationError, match="has 1 GPUs"):
        manifests.deployment(told)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (MINIMAL + "registyr: x\n", "registyr"),
        (MINIMAL.replace("{cpu: {}}", "{}"), "machine_profiles is empty"),
        (MINIMAL + "nats: {servers: 2}\n", "is even"),
        (MINIMAL + "settings: {ingress: {PATH: x}}\n", "is no setting"),
        (MINIMAL + "reply_sinks: [broker-ingress]\n", "is no beginning of URLs"),
        (MINIMAL.replace("{cpu: {}}", "{cpu: {limits: {memory: 500m}}}"), "machine_profiles.cpu.limits.memory: 500m"),
        (MINIMAL + "nats: {storage: 100m}\n", "nats.storage: 100m is in thousandths"),
        (MINIMAL + "weights: {size: 100m}\n", "weights.size: 100m is in thousandths"),
        (MINIMAL + "config: {requests: {memory: 1m}}\n", "config.requests.memory: 1m is in thousandths"),
        (MINIMAL + "nats: {requests: {cpu: '2'}, limits: {cpu: 1500m}}\n", "nats.requests.cpu: 2 is not at most"),
        (MINIMAL + "nats: {image: nats}\n", "nats.image: nats is no image with a tag"),
        (MINIMAL + "nats: {image: 'host:5000/nats'}\n", "nats.image: host:5000/nats is no image with a tag"),
        (MINIMAL + "nats: {image: 'a b:1'}\n", "nats.image: a b:1 is no image with a tag"),
        (MINIMAL + "ingress: {requests: {memory: 2Gi}}\n", "ingress.requests.memory: 2Gi is not at most its limit"),
        (MINIMAL + "config: {requests: {memory: 1Gi}}\n", "config.requests.memory: 1Gi is not at most its limit"),
        (MINIMAL + "window: 5s\n", "window: 5s is not from 6s to 3600s"),
        (MINIMAL + "scale_down_delay: 61m\n", "scale_down_delay: 61m is not from 0s"),
        (MINIMAL + "ingress: {min_scale: 5, max_scale: 2}\n", "ingress.min_scale: 5 is not at most max_scale, 2"),
        (MINIMAL + "config: {min_scale: 3, max_scale: 2}\n", "config.min_scale: 3 is not at most max_scale"),
        (MINIMAL + 'settings: {ingress: {SIE_X: "a\\nSIE_ADMIN_TOKEN=b"}}\n', "settings.ingress.SIE_X: .* one line"),
        (MINIMAL + "settings: {bundle: {SIE_NATS_URL: nats://x}}\n", "settings.bundle.SIE_NATS_URL: follows from"),
        (MINIMAL + "settings: {config: {SIE_NATS_URL: nats://x}}\n", "settings.config.SIE_NATS_URL: follows from"),
        (MINIMAL + "settings: {bundle: {SIE_PROFILE: x}}\n", "settings.bundle.SIE_PROFILE: follows from"),
        (MINIMAL + "settings: {bundle: {SIE_POOL: x}}\n", "settings.bundle.SIE_POOL: follows from"),
        (MINIMAL + "settings: {demand: {SIE_QUIET: '5'}}\n", "SIE_QUIET: is no setting of .* mean SIE_QUIET_S"),
        (MINIMAL + "settings: {bundle: {SIE_DEVICE: gpu}}\n", "settings.bundle.SIE_DEVICE: SIE_DEVICE='gpu' is wrong"),
        (MINIMAL + "settings: {ingress: {SIE_LOG_LEVEL: loud}}\n", "settings.ingress.SIE_LOG_LEVEL: .* is wrong"),
        (MINIMAL + "settings: {ingress: {SIE_REQUEST_TIMEOUT_S: '601'}}\n", "SIE_REQUEST_TIMEOUT_S: 601 is over 590"),
        (MINIMAL + "settings: {demand: {SIE_SESSION_S: '600'}}\n", "settings.demand.SIE_SESSION_S: 600 is over 500"),
        (MINIMAL + "settings: {bundle: {SIE_DRAIN_S: '551'}}\n", "settings.bundle.SIE_DRAIN_S: 551 is over 550"),
        (MINIMAL + "settings: {config: {SIE_STREAM_REPLICAS: '3'}}\n", "3 is more than nats.servers, 1"),
        (MINIMAL + "nats: {storage: 8Gi}\n", "nats.storage: 8Gi is not at least 13Gi, of which streams set 11.0Gi"),
        (
            MINIMAL + "settings: {config: {SIE_RESULT_MAX_BYTES: '34359738368'}}\n",
            "storage: 32Gi is not at least 44Gi",
        ),
        (MINIMAL.replace("dev.local", "''"), "registry: .*a registry's name"),
        (MINIMAL.replace("dev.local", "dev.local/"), "registry: .*a registry's name"),
        (MINIMAL + "cluster_domain: ''\n", "cluster_domain: .*the name of a domain"),
        (MINIMAL + "tag: other\n", "values.yaml cannot be read: the key 'tag' is there twice"),
    ],
)
def test_values_that_are_wrong_are_refused_by_name(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        component.files(values.load(written(tmp_path, text)))


def test_all_that_is_wrong_between_values_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nats\.servers: 4 is even; window: 1s .*; nats\.storage: 1m "):
        values.load(written(tmp_path, MINIMAL + "window: 1s\nnats: {servers: 4, storage: 1m}\n"))


@pytest.mark.parametrize("lane", [values.Lane(requests={"cpu": "1000"}), values.Lane(limits={"memory": "1Gi"})])
def test_a_pod_cannot_ask_for_more_than_its_limit(lane: values.Lane) -> None:
    with pytest.raises(ConfigurationError, match=r"machine_profiles\.cpu\.requests\.\w+: .* is not at most its limit"):
        manifests.deployment(with_values(machine_profiles={"cpu": lane}))


def test_a_folder_without_values_is_told_with_what_is_to_be_named(tmp_path: Path) -> None:
    for named in (tmp_path, written(tmp_path / "..", MINIMAL) / values.FILE):
        refused = CliRunner().invoke(command, ["render", str(named)]).exception
        assert isinstance(refused, ConfigurationError) and refused.field == values.FILE
        assert "There is no" in refused.message and "Name the folder of an overlay" in (refused.hint or "")


def test_what_streams_set_aside_is_as_the_page_says() -> None:
    gib = pod_settings.set_aside(Limits()) >> 30
    assert f"the streams set {gib} GiB of it aside" in (Path(__file__).parents[2] / "knative/README.md").read_text()


def test_every_server_of_a_cluster_is_named_to_every_process() -> None:
    told = with_values(nats=Nats(servers=3, tls=True), namespace="ai")
    assert told.nats_url("bundle").split(",") == [
        f"tls://bundle:$(NATS_PASSWORD)@sie-nats-{number}.sie-nats.ai.svc.cluster.local:4222" for number in range(3)
    ]
    assert component.settings_of(told)["config"]["SIE_STREAM_REPLICAS"] == "3"


def test_a_value_that_is_left_out_beside_another_has_its_default(tmp_path: Path) -> None:
    told = values.load(written(tmp_path, MINIMAL + "ingress: {max_scale: 20}\nconfig: {min_scale: 1}\n"))
    assert (told.ingress.min_scale, told.ingress.max_scale) == (1, 20)
    assert (told.config.min_scale, told.config.max_scale) == (1, 2)


def test_what_the_values_choose_reaches_the_base_as_patches() -> None:
    told = with_values(ingress=IngressScale(2, 20), public=True, weights=Weights("1Ti", "efs"))
    files = component.files(told)
    kustomization = yaml.safe_load(files["kustomization.yaml"])
    ingress = yaml.safe_load(kustomization["patches"][0]["patch"])
    assert {"op": "remove", "path": "/metadata/labels/networking.knative.dev~1visibility"} in ingress
    assert {step["value"] for step in ingress if "scale" in step["path"]} == {"2", "20"}
    namespace, claim = yaml.safe_load_all(files["kept.yaml"])
    assert (namespace["metadata"]["name"], claim["spec"]["storageClassName"]) == ("sie", "efs")


@pytest.mark.parametrize(
    ("image", "written"),
    [
        ("nats:2.15.1-scratch", {"newName": "nats", "newTag": "2.15.1-scratch"}),
        ("host:5000/mirror/nats:2", {"newName": "host:5000/mirror/nats", "newTag": "2"}),
        (f"host/nats@sha256:{'a' * 64}", {"newName": "host/nats", "digest": f"sha256:{'a' * 64}"}),
        (f"host:5000/nats:2@sha256:{'a' * 64}", {"newName": "host:5000/nats", "digest": f"sha256:{'a' * 64}"}),
    ],
)
def test_the_image_of_nats_is_taken_apart_where_kubernetes_does(image: str, written: dict[str, str]) -> None:
    images = yaml.safe_load(component.files(with_values(nats=Nats(image=image)))["kustomization.yaml"])["images"]
    assert {"name": "nats"} | written in images


def nats_steps(told: Values) -> dict[str, Any]:
    """What is changed in the servers' container, by path."""
    *_, patch = yaml.safe_load(component.files(told)["kustomization.yaml"])["patches"]
    return {step["path"].partition("/containers/0/")[2]: step["value"] for step in yaml.safe_load(patch["patch"])}


@pytest.mark.parametrize(
    ("cloud", "servers", "apart"), [("gke", 3, True), ("eks", 5, True), ("gke", 1, False), ("local", 3, False)]
)
def test_servers_of_a_cluster_share_no_machine_and_no_zone_where_there_are_others(
    cloud: Any, servers: int, apart: bool
) -> None:
    *_, patch = yaml.safe_load(
        component.files(with_values(cloud=cloud, nats=Nats(servers=servers)))["kustomization.yaml"]
    )["patches"]
    rules = [step for step in yaml.safe_load(patch["patch"]) if "topologySpreadConstraints" in step["path"]]
    assert [step["value"] for step in rules] == ["DoNotSchedule"] * 2 * apart


def test_servers_collect_garbage_before_their_limit_kills_them() -> None:
    told = nats_steps(with_values(nats=Nats(limits={"memory": "4Gi"})))
    assert told["env/-"] == {"name": "GOMEMLIMIT", "value": str(4 * 2**30 * 8 // 10)}
    assert "env/-" not in nats_steps(with_values(nats=Nats(limits={})))


@pytest.mark.parametrize("servers", [1, 3, 5])
def test_servers_that_can_hand_over_are_told_to_before_their_end(servers: int) -> None:
    told = with_values(nats=Nats(servers=servers))
    lame = "lame_duck" in component.nats_conf(told)
    assert lame == ("lifecycle" in nats_steps(told)) == (servers > 1)


def test_a_cluster_of_servers_does_not_find_what_one_server_wrote_for_it_would_delete_that() -> None:
    assert "store_dir: /data," in component.nats_conf(with_values(nats=Nats(servers=1)))
    assert "store_dir: /data/cluster," in component.nats_conf(with_values(nats=Nats(servers=3)))


def test_what_a_deletion_must_leave_is_no_part_of_what_it_deletes() -> None:
    told = with_values(weights=Weights("1Ti", "efs"))
    assert yaml.safe_load(component.files(told)["kustomization.yaml"])["resources"] == ["bundles.yaml"]


def test_render_writes_what_is_not_there_removes_what_is_not_meant_and_check_says_so(tmp_path: Path) -> None:
    overlay = str(written(tmp_path, MINIMAL))
    run = CliRunner()
    assert run.invoke(command, ["render", overlay]).exit_code == 0
    assert run.invoke(command, ["render", "--check", overlay]).exit_code == 0
    (tmp_path / "rendered/weights.yaml").write_text("left over")
    (tmp_path / "rendered/bundles.yaml").write_text("by hand")
    refused = run.invoke(command, ["render", "--check", overlay])
    assert isinstance(refused.exception, ConfigurationError)
    assert "weights.yaml" in str(refused.exception) and "bundles.yaml" in str(refused.exception)
    assert run.invoke(command, ["render", overlay]).exit_code == 0
    assert run.invoke(command, ["render", "--check", overlay]).exit_code == 0


def test_render_replaces_what_is_no_text_and_leaves_folders_alone(tmp_path: Path) -> None:
    overlay = str(written(tmp_path, MINIMAL))
    (tmp_path / "rendered" / "mine").mkdir(parents=True)
    (tmp_path / "rendered" / "bundles.yaml").write_bytes(b"\xff")
    (tmp_path / "rendered" / "by-hand.yaml").write_bytes(b"\xff")
    run = CliRunner()
    assert isinstance(run.invoke(command, ["render", "--check", overlay]).exception, ConfigurationError)
    assert run.invoke(command, ["render", overlay]).exit_code == 0
    assert run.invoke(command, ["render", "--check", overlay]).exit_code == 0
    assert (tmp_path / "rendered" / "mine").is_dir() and not (tmp_path / "rendered" / "by-hand.yaml").exists()


def test_secrets_are_new_each_time_and_no_password_reads_as_a_number() -> None:
    run = CliRunner()
    first, second = (list(yaml.safe_load_all(run.invoke(command, ["secrets", "-n", "ai"]).output)) for _ in range(2))
    users = {each["metadata"]["name"]: each for each in first}["sie-nats-users"]
    assert users["metadata"]["namespace"] == "ai" and set(users["stringData"]) == {*permissions.users(), "route"}
    assert all(password[0].isalpha() and len(password) == 49 for password in users["stringData"].values())
    assert first != second


def test_a_token_that_everybody_has_to_send_is_made_where_it_is_asked_for() -> None:
    for options, keys in (((), {"admin", "read"}), (("--inference",), {"admin", "read", "inference"})):
        printed = yaml.safe_load_all(CliRunner().invoke(command, ["secrets", *options]).output)
        (tokens,) = [each["stringData"] for each in printed if each["metadata"]["name"] == "sie-tokens"]
        assert tokens.keys() == keys and len(set(tokens.values())) == len(keys)


def names(kind: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value as the page names it, with its default."""
    for field in msgspec.structs.fields(kind):
        default = (
            field.default_factory() if field.default is msgspec.NODEFAULT and not field.required else field.default
        )
        lane = path + "machine_profiles.*." if field.name == "machine_profiles" else ""
        if isinstance(default, msgspec.Struct):
            for name, own in names(type(default), f"{path}{field.name}."):
                changed = getattr(default, name.rpartition(".")[2])
                yield name, changed if isinstance(own, int) else own
        else:
            yield path + field.name, default
        if lane:
            yield from names(values.Lane, lane)


def told(default: Any) -> str:
    """A default as the page says it."""
    if default is msgspec.NODEFAULT or default == "":
        return "" if default is msgspec.NODEFAULT else "empty"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, dict) and default:
        return f"`{', '.join(f'{name}: {value}' for name, value in default.items())}`"
    return f"`{default}`"


@pytest.mark.parametrize(("name", "default"), list(names(Values)))
def test_every_value_is_on_the_page_with_its_default(name: str, default: Any) -> None:
    page = (Path(__file__).parents[2] / "knative/README.md").read_text()
    assert re.search(rf"^\| `{re.escape(name)}` \| ?{re.escape(told(default))} \|", page, re.MULTILINE)


def test_every_value_on_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "knative/README.md").read_text().split("## Values")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert listed == [name for name, _ in names(Values)]
