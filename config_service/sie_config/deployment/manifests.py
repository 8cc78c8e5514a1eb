"""Bundles on Knative: one Service for each bundle that serves and each machine profile it runs on. Pure.

Owns what such a Service says, as plain dicts. What an operator chooses stands in ``values``; which bundles and machines
there are in ``bundle_spec`` and ``machine_profile``. Autoscaling is steered by held sessions (docs/architecture.md,
Demand): 2N-1 of them against a target of 2 are N pods, counted in the activator, which therefore stays in the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sie_config.deployment import machine_profile, placement
from sie_config.deployment.bundle_spec import BundleSpec
from sie_config.deployment.machine_profile import GPU_RESOURCE, MachineProfile, amount
from sie_config.deployment.pod_settings import TIMEOUT_S
from sie_config.deployment.values import Lane, Values, over
from sie_sdk.errors import ConfigurationError

Json = dict[str, Any]

VISIBILITY: Final = {"networking.knative.dev/visibility": "cluster-local"}
PORT: Final = 8080
STARTUP_S: Final = 300
"""How long a worker may take from its start to readiness; models are loaded later, when they are asked for."""
CACHE: Final = "/var/cache/sie"
CA: Final = "/etc/sie/ca"
HUB: Final = "sie-hub"
"""A Secret that may be there: what a worker's environment says of the hub that weights come from (``HF_TOKEN``)."""
USER: Final = 65532
LONGEST_NAME: Final = 57
"""Of a Service: a revision's name is it and six characters, and a label's value."""


def services(there: placement.Deployment, values: Values) -> list[Json]:
    """The Services of all bundles that serve, on the deployed machine profiles of each.

    Raises:
        ConfigurationError: a name is none for Kubernetes, or a machine profile is not to be had in this cloud.
    """
    return [
        service(bundle, profile, values)
        for bundle in there.bundles
        if bundle.status == "ready"
        for profile in there.on(bundle)
        if profile.name in there.deployed
    ]


def service(bundle: BundleSpec, profile: MachineProfile, values: Values) -> Json:
    """The Service of one bundle on one machine profile. Raises as `services`."""
    lane = values.machine_profiles[profile.name]
    labels = {
        "app.kubernetes.io/name": "sie-bundle",
        "app.kubernetes.io/part-of": "sie",
        "sie.dev/bundle": bundle.id,
        "sie.dev/machine-profile": profile.name,
    }
    annotations = {
        "autoscaling.knative.dev/target": "2",
        "autoscaling.knative.dev/target-utilization-percentage": "100",
        "autoscaling.knative.dev/target-burst-capacity": "-1",
        "autoscaling.knative.dev/initial-scale": "0",
        "autoscaling.knative.dev/min-scale": "0",
        "autoscaling.knative.dev/max-scale": str(lane.max_scale),
        "autoscaling.knative.dev/window": values.window,
        "autoscaling.knative.dev/scale-down-delay": values.scale_down_delay,
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period": values.last_pod_kept,
        "serving.knative.dev/progress-deadline": values.progress_deadline,
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": service_name(bundle.id, profile.name), "labels": labels | VISIBILITY},
        "spec": {
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod(bundle, profile, lane, values),
            }
        },
    }


def service_name(bundle: str, profile: str) -> str:
    """The Service of a lane, as the demand holder's URL names it.

    Raises:
        ConfigurationError: Kubernetes takes no such name.
    """
    name = f"{bundle}-{profile}"
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name):
        raise ConfigurationError(
            f"A Service cannot be named {name}.",
            field="name",
            limit=LONGEST_NAME,
            hint="A bundle's id begins with a letter, has letters, digits and dashes, and is short.",
        )
    return name


def resources(profile: MachineProfile, lane: Lane) -> Json:
    """What a pod asks for and gets at most."""
    return {"requests": {**profile.requests, **lane.requests}, "limits": {**profile.limits, **lane.limits}}


def environment(bundle: BundleSpec, profile: MachineProfile, values: Values) -> list[Json]:
    """The settings of a worker, the memory of its models as its pod has it, and what the values say otherwise."""
    memory = in_bytes(resources(profile, values.machine_profiles[profile.name])["limits"]["memory"])
    told = {
        "SIE_HOST": "0.0.0.0",
        "SIE_BUNDLE": bundle.id,
        # Of the pod's memory half for models where they run in it, a quarter for checkpoints that are kept open.
        **({} if profile.model_bytes else {"SIE_MODEL_BYTES": str(memory // 2)}),
        "SIE_HOST_BYTES": str(memory // 4),
        "SIE_CACHE_DIR": CACHE,
        **profile.environment,
        **values.settings.get("bundle", {}),
        "HOME": CACHE,
        "HF_HOME": f"{CACHE}/huggingface",
    }
    return [*nats_access("bundle", values), *({"name": name, "value": value} for name, value in told.items())]


def nats_access(user: str, values: Values) -> list[Json]:
    """How a process reaches NATS: the address names a password that comes from a Secret, and so has to stand first."""
    secret: Json = {"name": "NATS_PASSWORD", "valueFrom": password(user)}
    access = [secret, {"name": "SIE_NATS_URL", "value": values.nats_url(user)}]
    return access + ([{"name": "SSL_CERT_FILE", "value": f"{CA}/ca.crt"}] if values.nats.tls else [])


def password(user: str) -> Json:
    """Where the password of a user of NATS comes from."""
    return {"secretKeyRef": {"name": "sie-nats-users", "key": user}}


def in_bytes(quantity: str) -> int:
    """A quantity of memory, in Kubernetes' words."""
    return int(amount(quantity))


def _pod(bundle: BundleSpec, profile: MachineProfile, lane: Lane, values: Values) -> Json:
    volumes = _volumes(values)
    nodes = _nodes(profile, lane, values)
    return {
        "serviceAccountName": "sie-bundle",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containerConcurrency": 0,
        "timeoutSeconds": TIMEOUT_S,
        "responseStartTimeoutSeconds": TIMEOUT_S,
        **nodes,
        # A claim belongs to root until somebody says whose group it is. Other volumes are everybody's.
        **({"securityContext": {"fsGroup": USER}} if values.weights.storage_class else {}),
        "containers": [
            {
                "name": "bundle",
                "image": values.image(f"{bundle.image}-cuda" if profile.gpus else bundle.image),
                "imagePullPolicy": "IfNotPresent",
                "ports": [{"name": "http1", "containerPort": PORT}],
                "env": environment(bundle, profile, values),
                "envFrom": [{"secretRef": {"name": HUB, "optional": True}}],
                "resources": resources(profile, lane),
                # A pod that is late is not dead: who computes answers no probe for a while, and what dies is missed
                # by its heartbeats. So there is no liveness probe.
                "startupProbe": probe(STARTUP_S),
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT}},
                "securityContext": restricted(),
                "volumeMounts": [_mount(name, path, source) for name, path, source in volumes],
            }
        ],
        "volumes": [{"name": name, **source} for name, _, source in volumes],
    }


def probe(seconds: int) -> Json:
    """Asks every second, for so long, whether a process is ready."""
    return {
        "httpGet": {"path": "/readyz", "port": PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": seconds,
    }


def restricted() -> Json:
    """No more rights than a process of ours needs: it is nobody, and writes nowhere but in its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _volumes(values: Values) -> list[tuple[str, str, Json]]:
    """Name, place and source of each."""
    shared = values.weights.storage_class
    weights: Json = {"emptyDir": {"sizeLimit": values.weights.size}}
    if shared:
        weights = {"persistentVolumeClaim": {"claimName": "sie-weights"}}
    authority = [("ca", CA, {"configMap": {"name": "sie-nats-ca"}})] if values.nats.tls else []
    return [
        ("weights", CACHE, weights),
        # torch's workers share tensors there, and a container's own is 64 MiB.
        ("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
        ("tmp", "/tmp", {"emptyDir": {"sizeLimit": "1Gi"}}),
        *authority,
    ]


def _mount(name: str, path: str, source: Json) -> Json:
    """A volume in its place. What comes from Kubernetes is read; Knative refuses to mount it otherwise."""
    return {"name": name, "mountPath": path} | ({"readOnly": True} if "configMap" in source else {})


def _nodes(profile: MachineProfile, lane: Lane, values: Values) -> Json:
    """How its pods find their nodes."""
    selector: Mapping[str, str] = lane.node_selector
    tolerations: list[Json] = []
    if values.cloud != "local":
        if (nodes := profile.nodes.get(values.cloud)) is None:
            raise ConfigurationError(
                f"{values.cloud} has no machine of profile {profile.name}.",
                field=f"machine_profiles.{profile.name}",
                hint="docs/bundles.md has the profiles of each cloud.",
            )
        selector = {**nodes.node_selector, **selector}
        told: list[Json] = msgspec.to_builtins(nodes.tolerations)
        tolerations = [{name: value for name, value in each.items() if value} for each in told]
    return ({"nodeSelector": dict(selector)} if selector else {}) | (
        {"tolerations": tolerations} if tolerations else {}
    )


def deployment(values: Values) -> placement.Deployment:
    """What the values deploy of the packaged bundles and machine profiles.

    Raises:
        ConfigurationError: a machine profile is not known, asks for another number of GPUs than it has, or for more
            than its limit.
    """
    there = placement.deployment(values.profiles)
    for profile in there.machine_profiles:
        lane = values.machine_profiles.get(profile.name)
        if lane is not None and lane.limits.get(GPU_RESOURCE, str(profile.gpus)) != str(profile.gpus):
            raise ConfigurationError(
                f"machine_profiles.{profile.name}.limits: a pod of it has {profile.gpus} GPUs.",
                field=f"machine_profiles.{profile.name}.limits.{GPU_RESOURCE}",
                hint=f"{machine_profile.PACKAGED.name} says how many.",
            )
        asked = resources(profile, lane) if lane is not None else {"requests": {}, "limits": {}}
        for found in over(("machine_profiles", profile.name), asked["requests"], asked["limits"]):
            raise ConfigurationError(f"{found}.", field=found.path, limit=found.allowed)
    return there
