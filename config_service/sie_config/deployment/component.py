"""What the values of an overlay make of the base: a kustomize component and its files. Pure.

Owns everything but the bundles (``manifests``): the settings of the other processes, the NATS servers' configuration
with the rights of each user (``sie_broker.jetstream.permissions``), and the patches. The base is knative/base.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from sie_broker.jetstream import permissions
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.pools import pool
from sie_config.deployment import manifests
from sie_config.deployment.values import Nats, Scale, Values

Json = dict[str, Any]

FOLDER: Final = "rendered"
WRITTEN: Final = "# Written by `sie manifests render` from values.yaml, which is the file to change.\n"
KEPT: Final = f"{WRITTEN}# Applied by itself, first: what `kubectl delete -k` of the overlay leaves where it is.\n"
TLS: Final = "/etc/nats-tls"
LEAVE: Final = ["/nats-server", "--signal", "ldm=1"]
"""What a server of a cluster is told before its end: to hand over what it leads, then let its clients go one by one.
SIGTERM, which Kubernetes sends, ends it at once, and is left aside meanwhile. One that is alone would only be away for
longer."""
ROUTE: Final = "route"
"""As what NATS servers know each other, beside the users: whoever joins them has every user's rights."""

PART: Final = {"app.kubernetes.io/part-of": "sie"}

# Where a Service's pods are told where a ConfigMap is, whose name ends with what is in it.
_REFERENCES: Final[Json] = {
    "nameReference": [
        {
            "kind": "ConfigMap",
            "version": "v1",
            "fieldSpecs": [
                {
                    "kind": "Service",
                    "group": "serving.knative.dev",
                    "path": "spec/template/spec/containers/envFrom/configMapRef/name",
                }
            ],
        }
    ]
}


def files(values: Values) -> dict[str, str]:
    """The files of the folder `FOLDER`, by name.

    Raises:
        ConfigurationError: the values do not go together.
    """
    bundles = manifests.services(manifests.deployment(values), values)
    told = {
        "kustomization.yaml": _yaml(_kustomization(values)),
        "references.yaml": _yaml(_REFERENCES),
        "bundles.yaml": _yaml(*bundles),
        "nats.conf": WRITTEN + nats_conf(values),
        **{f"{name}.env": _env(settings) for name, settings in settings_of(values).items()},
    }
    return told | {"kept.yaml": KEPT + _yaml(*_kept(values)).removeprefix(WRITTEN)}


def settings_of(values: Values) -> dict[str, dict[str, str]]:
    """The settings of the ingress, the config service and the demand holder."""
    ingress = {"SIE_HOST": "0.0.0.0", "SIE_CONFIG_URL": values.config_url}
    config = {
        "SIE_HOST": "0.0.0.0",
        "SIE_MACHINE_PROFILES": values.profiles,
        "SIE_POOLS": pool.DEFAULT,  # a Service's pods are everybody's, and leases give them to other pools
        "SIE_STREAM_REPLICAS": str(min(3, values.nats.servers)),
    }
    demand = {"SIE_DEMAND_URL": values.demand_url, "SIE_MAX_SCALE": str(values.max_scale)}
    # Who takes a request says whether its sink is allowed, and who sends the result asks once more.
    sinks = {"SIE_REPLY_SINKS": ",".join(values.reply_sinks)} if values.reply_sinks else {}
    return {
        "ingress": ingress | sinks | values.settings.get("ingress", {}),
        "config": config | values.settings.get("config", {}),
        "demand": demand | sinks | values.settings.get("demand", {}),
    }


def nats_conf(values: Values) -> str:
    """The configuration of each NATS server. Passwords come from its environment: ``NATS_<USER>``, and ``ROUTE_<n>``,
    the address of each server with the password that they have for each other."""
    # A server that joins a cluster deletes what it had alone after half a minute: it does not come to see it.
    store = "/data" if values.nats.servers == 1 else "/data/cluster"
    lines = [
        "server_name: $POD_NAME",
        "port: 4222",
        "http_port: 8222",
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f"jetstream {{ store_dir: {store}, max_file_store: {values.nats.file_store}, max_memory_store: 67108864 }}",
    ]
    if values.nats.tls:
        lines += _tls("")
    if values.nats.servers > 1:
        routes = ", ".join(f"${name}" for name, _ in _routes(values))
        # Clients are told all names at their start; addresses of pods would fit no certificate.
        cluster = ["  name: sie", "  port: 6222", "  no_advertise: true", f"  routes: [{routes}]"]
        cluster.append(f"  authorization {{ user: {ROUTE}, password: $NATS_{ROUTE.upper()} }}")
        lines += ["lame_duck_duration: 30s", "lame_duck_grace_period: 5s"]
        lines += ["cluster {", *cluster, *(_tls("  ", verify=True) if values.nats.tls else []), "}"]
    return "\n".join([*lines, "accounts {", "  SIE {", "    jetstream: enabled", *users("    "), "  }", "}"]) + "\n"


def _routes(values: Values) -> Iterable[tuple[str, str]]:
    """Where each server is for the others, by the name of the variable that says so."""
    for number in range(values.nats.servers):
        yield f"ROUTE_{number}", f"nats://{ROUTE}:$(NATS_{ROUTE.upper()})@sie-nats-{number}.sie-nats:6222"


def users(indent: str) -> Iterable[str]:
    """The users of the account, with their rights, as the server reads them."""
    yield f"{indent}users: ["
    for name, rights in permissions.users().items():
        yield f"{indent}  {{"
        yield f"{indent}    user: {name}"
        yield f"{indent}    password: $NATS_{name.upper()}"
        yield f"{indent}    permissions: {{"
        for verb, allow, deny in (
            ("publish", rights.publish, rights.deny_publish),
            ("subscribe", rights.subscribe, ()),
        ):
            yield f"{indent}      {verb}: {{"
            for what, names in (("allow", allow), ("deny", deny)):
                if names:
                    yield f"{indent}        {what}: ["
                    yield from (f'{indent}          "{subject}"' for subject in names)
                    yield f"{indent}        ]"
            yield f"{indent}      }}"
        yield f"{indent}    }}"
        yield f"{indent}  }}"
    yield f"{indent}]"


def _kustomization(values: Values) -> Json:
    names = ("ingress", "config", "demand")
    registry = [
        {"name": f"sie-{name}", "newName": f"{values.registry}/sie-{name}", "newTag": values.tag} for name in names
    ]
    generated: list[Json] = [{"name": f"sie-{name}-settings", "envs": [f"{name}.env"]} for name in names]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "namespace": values.namespace,
        "resources": ["bundles.yaml"],
        "configurations": ["references.yaml"],
        "generatorOptions": {"labels": PART},
        "configMapGenerator": [*generated, {"name": "sie-nats", "files": ["nats.conf"]}],
        "images": [*registry, {"name": "nats", **_image(values.nats)}],
        "patches": list(_patches(values)),
    }


def _patches(values: Values) -> Iterable[Json]:
    serving = {"group": "serving.knative.dev", "version": "v1", "kind": "Service"}
    for name, scale in (("ingress", values.ingress), ("config", values.config)):
        steps = [*_reached(name, values), *_scaled(scale)]
        if name == "ingress" and values.public:
            steps.append({"op": "remove", "path": "/metadata/labels/networking.knative.dev~1visibility"})
        yield _patch({**serving, "name": f"sie-{name}"}, steps)
    yield _patch(
        {"kind": "Deployment", "name": "sie-demand"},
        [*_reached("demand", values), {"op": "replace", "path": "/spec/replicas", "value": values.demand_replicas}],
    )
    yield _patch({"kind": "StatefulSet", "name": "sie-nats"}, list(_servers(values)))


def _reached(user: str, values: Values) -> list[Json]:
    """What a process needs to reach NATS, besides the password that the base gives it."""
    pod = "/spec/template/spec"
    env = manifests.nats_access(user, values)[1:]
    steps = [{"op": "add", "path": f"{pod}/containers/0/env/-", "value": each} for each in env]
    if values.nats.tls:
        mount = {"name": "ca", "mountPath": manifests.CA, "readOnly": True}
        steps += [
            {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
            {"op": "add", "path": f"{pod}/volumes/-", "value": {"name": "ca", "configMap": {"name": "sie-nats-ca"}}},
        ]
    return steps


def _scaled(scale: Scale) -> list[Json]:
    path = "/spec/template/metadata/annotations/autoscaling.knative.dev~1"
    told = {"min-scale": scale.min_scale, "max-scale": scale.max_scale}
    asked = "/spec/template/spec/containers/0/resources/requests"
    return [
        *({"op": "replace", "path": f"{path}{name}", "value": str(value)} for name, value in told.items()),
        *({"op": "add", "path": f"{asked}/{name}", "value": value} for name, value in scale.requests.items()),
    ]


def _servers(values: Values) -> Iterable[Json]:
    nats, claim = values.nats, "/spec/volumeClaimTemplates/0/spec"
    yield {"op": "replace", "path": "/spec/replicas", "value": nats.servers}
    yield {"op": "replace", "path": f"{claim}/resources/requests/storage", "value": nats.storage}
    if nats.storage_class:
        yield {"op": "add", "path": f"{claim}/storageClassName", "value": nats.storage_class}
    resources = {"requests": dict(nats.requests), "limits": dict(nats.limits)}
    container = "/spec/template/spec/containers/0"
    yield {"op": "replace", "path": f"{container}/resources", "value": resources}
    if "memory" in nats.limits:
        # Left alone, the server's collector lets garbage double what a long queue takes.
        soft = manifests.in_bytes(nats.limits["memory"]) * 8 // 10
        yield {"op": "add", "path": f"{container}/env/-", "value": {"name": "GOMEMLIMIT", "value": str(soft)}}
    if nats.servers > 1:
        yield {"op": "add", "path": f"{container}/lifecycle", "value": {"preStop": {"exec": {"command": LEAVE}}}}
        password = {"name": f"NATS_{ROUTE.upper()}", "valueFrom": manifests.password(ROUTE)}
        for variable in (password, *({"name": name, "value": where} for name, where in _routes(values))):
            yield {"op": "add", "path": f"{container}/env/-", "value": variable}
    if nats.servers > 1 and values.cloud != "local":
        # Together on a machine they would be gone together, and their disks would keep them there.
        for number in range(2):
            rule = f"/spec/template/spec/topologySpreadConstraints/{number}/whenUnsatisfiable"
            yield {"op": "replace", "path": rule, "value": "DoNotSchedule"}
    if nats.tls:
        mount = {"name": "tls", "mountPath": TLS, "readOnly": True}
        volume = {"name": "tls", "secret": {"secretName": "sie-nats-tls"}}
        yield {"op": "add", "path": f"{container}/volumeMounts/-", "value": mount}
        yield {"op": "add", "path": "/spec/template/spec/volumes/-", "value": volume}


def _kept(values: Values) -> Iterable[Json]:
    # Who enforces `restricted` looks first whether the queue-proxy of their Knative release obeys it; ours do.
    security = {"enforce": "baseline", "warn": "restricted"}
    labels = PART | {f"pod-security.kubernetes.io/{mode}": level for mode, level in security.items()}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": values.namespace, "labels": labels}}
    if values.weights.storage_class:
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "sie-weights", "namespace": values.namespace, "labels": PART},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": values.weights.storage_class,
                "resources": {"requests": {"storage": values.weights.size}},
            },
        }


def _tls(indent: str, *, verify: bool = False) -> list[str]:
    files = {"cert_file": "tls.crt", "key_file": "tls.key", "ca_file": "ca.crt"}
    told = [f"{indent}  {name}: {TLS}/{file}" for name, file in files.items()]
    return [f"{indent}tls {{", *told, *([f"{indent}  verify: true"] if verify else []), f"{indent}}}"]


def _image(nats: Nats) -> Json:
    name, tag, digest = nats.image_parts
    return {"newName": name} | ({"digest": digest} if digest else {"newTag": tag})


def _patch(target: Json, steps: list[Json]) -> Json:
    return {"target": target, "patch": yaml.safe_dump(steps, sort_keys=False, width=1000)}


def _env(settings: dict[str, str]) -> str:
    return WRITTEN + "".join(f"{name}={value}\n" for name, value in settings.items())


def _yaml(*documents: Any) -> str:
    return WRITTEN + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """As a person would write it: without anchors, a text of several lines in several lines."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)
