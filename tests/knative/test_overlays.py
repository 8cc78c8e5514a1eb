"""The overlays as kustomize builds them: valid, with limits and least rights everywhere, and true to their values."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import msgspec
import pytest
import yaml

import sie_broker.settings
import sie_bundle.settings
import sie_config.settings
import sie_ingress.settings
from sie_config.deployment import bundle_spec, component, manifests, pod_settings, values
from sie_sdk import settings

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(path.parent.name for path in (ROOT / "knative/overlays").glob("*/kustomization.yaml"))
KNATIVE = ROOT.parent / "shared/lab/cluster/manifests/serving.yaml"
KUBERNETES = "1.34"
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "ingress": sie_ingress.settings.Settings,
    "config": sie_config.settings.Settings,
    "demand": sie_broker.settings.Settings,
    "bundle": sie_bundle.settings.Settings,
}
EVERYWHERE = {"SIE_LOG_LEVEL"}

EVERY_OPTION = """
cloud: gke
registry: example.org/sie
tag: "1"
namespace: ai
cluster_domain: example.local
public: true
machine_profiles:
  cpu: {max_scale: 2, node_selector: {pool: small}}
  l4-spot: {max_scale: 8, requests: {cpu: "2", memory: 8Gi}}
ingress: {min_scale: 2, max_scale: 20}
config: {min_scale: 1}
nats: {servers: 5, storage: 40Gi, tls: true}
weights: {size: 1Ti, storage_class: standard-rwx}
settings:
  ingress: {SIE_MAX_ITEMS: "100", SIE_LOG_LEVEL: DEBUG}
  config: {SIE_WORK_MAX_BYTES: "1073741824"}
  demand: {SIE_QUIET_S: "30"}
  bundle: {SIE_BATCH_S: "0.1"}
"""


@pytest.fixture(scope="session", params=[*OVERLAYS, "every option"])
def overlay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of each overlay, and of one in which every value is another than usual."""
    if request.param in OVERLAYS:
        return ROOT / "knative/overlays" / str(request.param)
    knative = tmp_path_factory.mktemp("every") / "knative"
    shutil.copytree(ROOT / "knative/base", knative / "base")
    own = knative / "overlays/every"
    (own / component.FOLDER).mkdir(parents=True)
    shutil.copy(ROOT / "knative/overlays/gke/kustomization.yaml", own)
    (own / values.FILE).write_text(EVERY_OPTION)
    for name, text in component.files(values.load(own)).items():
        (own / component.FOLDER / name).write_text(text)
    return own


@cache
def built(overlay: Path) -> list[dict[str, Any]]:
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, str(overlay)], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert "Warning" not in done.stderr, done.stderr
            return list(yaml.safe_load_all(done.stdout))
    pytest.skip("neither kustomize nor kubectl is installed: overlays are not built")


def kept(overlay: Path) -> list[dict[str, Any]]:
    """What is applied by itself, and stays."""
    return list(yaml.safe_load_all((overlay / component.FOLDER / "kept.yaml").read_text()))


def named(overlay: Path, kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in built(overlay) if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pods(overlay: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod of everything that runs, by name."""
    for each in built(overlay):
        if (template := each.get("spec", {}).get("template")) is not None:
            yield each["metadata"]["name"], template["spec"]


def containers(overlay: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods(overlay):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield name, container


def is_knative(each: dict[str, Any]) -> bool:
    return bool(each["apiVersion"].startswith("serving.knative.dev/"))


def test_what_is_committed_is_what_the_values_render(overlay: Path) -> None:
    folder = overlay / component.FOLDER
    assert {path.name: path.read_text() for path in folder.iterdir()} == component.files(values.load(overlay)), (
        f"sie manifests render {overlay}"
    )


def test_every_object_of_kubernetes_is_valid(overlay: Path) -> None:
    for each in built(overlay):
        if not is_knative(each):
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_every_service_is_valid_to_knative(overlay: Path) -> None:
    if not KNATIVE.is_file():
        pytest.skip(f"{KNATIVE} is not there: it has Knative's own schema of a Service")
    definitions = [each for each in yaml.safe_load_all(KNATIVE.read_text()) if each]
    (crd,) = [each for each in definitions if each["metadata"]["name"] == "services.serving.knative.dev"]
    schema = closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    for each in filter(is_knative, built(overlay)):
        jsonschema.Draft7Validator(schema).validate(each)


def closed(schema: Any) -> Any:
    """The schema with no more fields than it names: the server drops others without a word, or refuses them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    if found.pop("x-kubernetes-int-or-string", False):
        found.pop("type", None)
        found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(found.get("properties"), dict) and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def test_what_knative_passes_on_is_a_valid_pod(overlay: Path) -> None:
    own = {"containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds"}
    for each in filter(is_knative, built(overlay)):
        template = each["spec"]["template"]
        spec = {name: value for name, value in template["spec"].items() if name not in own}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_no_service_breaks_rules_of_knative_that_its_schema_does_not_tell(overlay: Path) -> None:
    for each in filter(is_knative, built(overlay)):
        spec = each["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        names = [variable["name"] for variable in container["env"]]
        assert len(names) == len(set(names))
        assert {"PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"}.isdisjoint(names)
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        for mount in container["volumeMounts"]:
            assert mount["mountPath"] not in ("/", "/dev", "/dev/log")
            ours = volumes[mount["name"]].keys() & {"emptyDir", "persistentVolumeClaim"}
            assert ours or mount["readOnly"], mount["name"]
        # Without a period of its own Knative probes every 50 ms, and takes no other terms.
        assert container["readinessProbe"].keys() == {"httpGet"}


def test_nothing_runs_without_limits_or_with_rights_that_it_does_not_need(overlay: Path) -> None:
    seen = list(containers(overlay))
    assert len(seen) >= 5
    for name, container in seen:
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
        assert "memory" in container["resources"]["limits"], name
        security = container["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0 and security["readOnlyRootFilesystem"], name
        assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name


@pytest.mark.parametrize("name", values.BASE_LIMITS)
def test_what_a_service_may_ask_for_is_held_against_the_limits_that_it_has(name: str) -> None:
    base = yaml.safe_load((ROOT / f"knative/base/{name}.yaml").read_text())
    (container,) = base["spec"]["template"]["spec"]["containers"]
    assert values.BASE_LIMITS[name] == container["resources"]["limits"]


def test_nobody_may_ask_kubernetes_anything(overlay: Path) -> None:
    assert {each["kind"] for each in built(overlay)}.isdisjoint(
        {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    )
    accounts = {each["metadata"]["name"]: each for each in built(overlay) if each["kind"] == "ServiceAccount"}
    assert not any(each["automountServiceAccountToken"] for each in accounts.values())
    for name, pod in pods(overlay):
        assert pod["automountServiceAccountToken"] is False and pod["serviceAccountName"] in accounts, name


def test_there_is_no_secret_and_every_one_that_is_named_can_be_made(overlay: Path) -> None:
    assert not [each for each in built(overlay) if each["kind"] == "Secret"]
    keys = {
        (secret["name"], secret["key"])
        for _, container in containers(overlay)
        for variable in container.get("env", ())
        if (secret := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    users = {"ingress", "config", "demand", "bundle", "producer", "operator"}
    users |= {"route"} if values.load(overlay).nats.servers > 1 else set()
    assert keys == {("sie-nats-users", user) for user in users} | {
        ("sie-tokens", token) for token in ("admin", "read", "inference")
    }


def test_workers_and_nobody_else_are_told_how_to_reach_the_hub_by_a_secret_that_may_be_missing(overlay: Path) -> None:
    for name, container in containers(overlay):
        secrets = [each["secretRef"] for each in container.get("envFrom", ()) if "secretRef" in each]
        assert secrets == ([{"name": "sie-hub", "optional": True}] if container["name"] == "bundle" else []), name


def test_metrics_are_open_to_pods_that_are_labelled_so_past_queue_proxy(overlay: Path) -> None:
    (policy,) = (each for each in built(overlay) if each["metadata"]["name"] == "sie-metrics")
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"sie.dev/metrics": "true"}}}]
    ports = {container["name"]: container.get("ports", []) for _, container in containers(overlay)}
    opened = {port["port"] for port in rule["ports"]}
    assert opened == {ports["ingress"][0]["containerPort"], ports["nats"][-1]["containerPort"]}


def test_every_setting_that_a_pod_is_given_is_one_of_its_process(overlay: Path) -> None:
    maps = {each["metadata"]["name"]: each["data"] for each in built(overlay) if each["kind"] == "ConfigMap"}
    for name, container in containers(overlay):
        kind = SETTINGS.get(container["name"])
        if kind is None:
            continue
        known = {settings.variable(field.name) for field in msgspec.structs.fields(kind)} | EVERYWHERE
        given = {each["name"]: each.get("value") for each in container["env"]}
        for each in container.get("envFrom", ()):
            given |= (
                maps[each["configMapRef"]["name"]] if "configMapRef" in each else {}
            )  # a name that kustomize did not follow is not there
        sie = {variable: value for variable, value in given.items() if variable.startswith("SIE_")}
        assert sie and sie.keys() <= known, name
        from_secrets = {"SIE_ADMIN_TOKEN", "SIE_CONFIG_READ_TOKEN", "SIE_AUTH_TOKENS"}
        told = {variable: str(value) for variable, value in sie.items() if variable not in from_secrets}
        settings.read(kind, told)


def test_every_image_is_one_that_is_built_and_has_a_tag(overlay: Path) -> None:
    told = values.load(overlay)
    ready = [bundle.image for bundle in bundle_spec.load() if bundle.status == "ready"]
    known = {"sie-ingress", "sie-config", "sie-demand", *ready, *(f"{name}-cuda" for name in ready)}
    for name, container in containers(overlay):
        if name == "sie-nats":
            assert container["image"] == told.nats.image
            continue
        path, _, tag = container["image"].rpartition(":")
        assert tag == told.tag != "latest", name
        assert path.removeprefix(f"{told.registry}/") in known, name
        assert container["imagePullPolicy"] == "IfNotPresent", name


def test_every_service_is_for_this_cluster_alone_unless_its_values_say_otherwise(overlay: Path) -> None:
    public = values.load(overlay).public
    for each in filter(is_knative, built(overlay)):
        hidden = each["metadata"]["labels"].get("networking.knative.dev/visibility") == "cluster-local"
        assert hidden is not (public and each["metadata"]["name"] == "sie-ingress")


def test_policies_and_budgets_select_pods_that_there_are(overlay: Path) -> None:
    names = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]
        for each in built(overlay)
        if (template := each.get("spec", {}).get("template")) is not None
    }
    for each in built(overlay):
        if each["kind"] not in ("NetworkPolicy", "PodDisruptionBudget"):
            continue
        selector = each["spec"].get("podSelector") or each["spec"].get("selector") or {}
        wanted = set(selector.get("matchLabels", {}).values())
        for expression in selector.get("matchExpressions", ()):
            wanted |= set(expression["values"])
        assert wanted <= names, each["metadata"]["name"]


def test_nothing_that_keeps_data_is_deleted_with_the_rest_and_all_of_the_rest_can_be_listed(overlay: Path) -> None:
    kinds = {each["kind"] for each in built(overlay)}
    assert kinds.isdisjoint({"Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret"})
    servers = named(overlay, "StatefulSet", "sie-nats")["spec"]
    assert servers["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    for each in (*built(overlay), *kept(overlay)):
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sie", each["metadata"]["name"]


def test_what_is_kept_is_valid_and_holds_every_claim_that_pods_mount(overlay: Path) -> None:
    namespace, *claims = kept(overlay)
    for each in (namespace, *claims):
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    assert namespace["metadata"]["name"] == values.load(overlay).namespace
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, pod in pods(overlay)
        for volume in pod.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert mounted == {claim["metadata"]["name"] for claim in claims}


def test_everything_is_in_the_namespace_that_its_addresses_name(overlay: Path) -> None:
    told = values.load(overlay)
    for each in built(overlay):
        assert each["metadata"]["namespace"] == told.namespace, each["metadata"]["name"]
    demand = {each["metadata"]["name"]: each for each in built(overlay) if is_knative(each)}
    for service in manifests.services(manifests.deployment(told), told):
        assert service["metadata"]["name"] in demand


def test_a_nats_server_counts_as_up_only_once_it_has_what_the_others_have(overlay: Path) -> None:
    (container,) = named(overlay, "StatefulSet", "sie-nats")["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert named(overlay, "PodDisruptionBudget", "sie-nats")["spec"]["maxUnavailable"] == 1


def test_nats_has_room_for_what_the_streams_set_aside_and_a_server_for_each_copy(overlay: Path) -> None:
    told = values.load(overlay)
    config = settings.read(sie_config.settings.Settings, component.settings_of(told)["config"])
    assert pod_settings.set_aside(config) < told.nats.file_store
    server = named(overlay, "StatefulSet", "sie-nats")["spec"]
    assert server["replicas"] == told.nats.servers >= config.stream_replicas
    (claim,) = server["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == told.nats.storage
