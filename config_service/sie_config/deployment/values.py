"""What a platform engineer chooses for one cluster: the file ``values.yaml`` of an overlay, as a record.

Owns the record, its reading, and the addresses that follow from it. What Kubernetes is told by it stands in
``manifests`` (the bundles) and ``component`` (everything else); knative/README.md explains each value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sie_broker.events.allow_list import AllowList
from sie_config.deployment import pod_settings
from sie_config.deployment.machine_profile import Quantity, amount
from sie_config.model import faults
from sie_config.model.model_spec import Name
from sie_config.model.structure import Finding, finding
from sie_config.model.structure import Path as Place
from sie_sdk.errors import ConfigurationError

FILE: Final = "values.yaml"
ASKED_FOR: Final = 100
"""Pods that are asked of a Service at most, where its budget is smaller: ``kn`` may raise that at any time."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Seconds = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,6}(s|m)$")]
Line = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n\0]*$", description="a text of one line")]
BASE_LIMITS: Final = {"ingress": {"memory": "1Gi"}, "config": {"memory": "512Mi"}}
"""Of the base's Services: no value changes them."""
TIMES: Final = {"window": (6, 3600), "scale_down_delay": (0, 3600)}
"""What Knative takes, in seconds."""
_IMAGE: Final = re.compile(
    r"(?P<name>(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9._/-]+)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


class Lane(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pods of one machine profile, of each bundle that runs on it."""

    max_scale: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Pods at most: of a profile with GPUs, the budget of each bundle."""
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    """Instead of the profile's own, by resource."""
    node_selector: dict[str, str] = {}
    """Besides the profile's own of this cloud."""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many pods of the ingress or the config service there may be, and what each asks for."""

    min_scale: Count = 0
    max_scale: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    requests: dict[str, Quantity] = {}
    """Instead of the base's own, by resource."""


class IngressScale(Scale, frozen=True, forbid_unknown_fields=True):
    """Of the ingress: one that is there, so that no request waits for it."""

    min_scale: Count = 1


class ConfigScale(Scale, frozen=True, forbid_unknown_fields=True):
    """Of the config service: the one that leads, and another while its revision changes."""

    max_scale: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2


class Nats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The NATS servers."""

    image: str = "nats:2.15.1-scratch"
    """With ``/nats-server``, at least 2.12; its tag or its digest is said."""
    servers: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """An odd number: of an even one, half are no majority."""
    storage: Quantity = "32Gi"
    """Of each. Streams set 11Gi of it aside (docs/settings.md), and without that nothing starts."""
    storage_class: str = ""
    """Empty: the cluster's own choice."""
    requests: dict[str, Quantity] = msgspec.field(default_factory=lambda: {"cpu": "500m", "memory": "1Gi"})
    limits: dict[str, Quantity] = msgspec.field(default_factory=lambda: {"memory": "2Gi"})
    tls: bool = False
    """The certificate is the Secret ``sie-nats-tls``, who may sign it the ConfigMap ``sie-nats-ca``."""

    @property
    def file_store(self) -> int:
        """Bytes that a server may take of its storage. A tenth stays free for what streams need besides messages."""
        return int(amount(self.storage)) * 9 // 10

    @property
    def image_parts(self) -> tuple[str, str, str]:
        """Name, tag and digest of the image; of the last two one may be empty, or all where it is none."""
        found = _IMAGE.fullmatch(self.image)
        return (found["name"], found["tag"] or "", found["digest"] or "") if found else ("", "", "")


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where bundles keep fetched weights: in a volume of each pod, or in a claim that all share."""

    size: Quantity = "50Gi"
    storage_class: str = ""
    """Of a claim ``sie-weights`` that many nodes may write; empty: a volume of each pod, gone with it."""


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    cloud: Literal["local", "gke", "eks"]
    """Whose node selectors and tolerations bundles get; ``local``: none."""
    registry: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*$", description="a registry's name, without a last slash"
        ),
    ]
    """What the names of images begin with, without the last slash."""
    tag: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
    machine_profiles: dict[Name, Lane]
    """Those that are deployed (``SIE_MACHINE_PROFILES``)."""
    namespace: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)] = "sie"
    cluster_domain: Annotated[
        str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", description="the name of a domain")
    ] = "cluster.local"
    window: Seconds = "60s"
    """Over what time the autoscaler takes the mean of what is asked for; it rests as long before zero."""
    scale_down_delay: Seconds = "5m"
    """How long a bundle keeps a pod that nobody holds a session for."""
    last_pod_kept: Seconds = "30s"
    """How long the last pod outlives a decision for zero: an autoscaler that was restarted makes it of every lane."""
    progress_deadline: Seconds = "1800s"
    """How long a new pod may take: a large image on a new node."""
    demand_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 2
    public: bool = False
    """Whether the ingress is reached from outside of the cluster."""
    ingress: IngressScale = IngressScale()
    config: ConfigScale = ConfigScale()
    nats: Nats = Nats()
    weights: Weights = Weights()
    reply_sinks: list[str] = []
    """Beginnings of URLs to which results may be sent (``SIE_REPLY_SINKS``): the Brokers of Knative Eventing, say."""
    settings: dict[pod_settings.Component, dict[str, Line]] = {}
    """Further ``SIE_*`` settings of each process (docs/settings.md)."""

    @property
    def profiles(self) -> str:
        """``SIE_MACHINE_PROFILES``."""
        return ",".join(self.machine_profiles)

    @property
    def max_scale(self) -> int:
        """``SIE_MAX_SCALE``: more than any Service may have, so that its own bound is the one that counts."""
        return max(ASKED_FOR, *(lane.max_scale for lane in self.machine_profiles.values()))

    @property
    def demand_url(self) -> str:
        """``SIE_DEMAND_URL``: the address of each bundle's Service."""
        return f"http://{{bundle}}-{{profile}}.{self._domain}"

    @property
    def config_url(self) -> str:
        """``SIE_CONFIG_URL``."""
        return f"http://sie-config.{self._domain}"

    def nats_url(self, user: str) -> str:
        """``SIE_NATS_URL`` of a user, for a container that has its password as ``NATS_PASSWORD``: every server."""
        scheme = "tls" if self.nats.tls else "nats"
        names = [f"sie-nats-{number}.sie-nats.{self._domain}" for number in range(self.nats.servers)]
        return ",".join(f"{scheme}://{user}:$(NATS_PASSWORD)@{name}:4222" for name in names)

    def image(self, name: str) -> str:
        """An image of this project."""
        return f"{self.registry}/{name}:{self.tag}"

    @property
    def _domain(self) -> str:
        return f"{self.namespace}.svc.{self.cluster_domain}"


def load(folder: Path) -> Values:
    """The values of an overlay's folder.

    Raises:
        ConfigurationError: names all faults; or the folder has no such file.
    """
    path = folder / FILE
    if not path.is_file():
        raise ConfigurationError(
            f"There is no {path}.", field=FILE, hint="Name the folder of an overlay, which has one: knative/README.md."
        )
    values = faults.checked(faults.from_yaml(path), Values, origin=str(path))
    if found := list(_mismatches(values)):
        told = "; ".join(map(str, found))
        raise ConfigurationError(
            f"{path} is wrong: {told}.",
            field=found[0].path,
            hint="knative/README.md says what each value may be.",
            faults=msgspec.to_builtins(found),
        )
    try:
        AllowList(",".join(values.reply_sinks), "")
    except ConfigurationError as error:
        error.field = "reply_sinks"
        raise
    return values


def _mismatches(values: Values) -> Iterator[Finding]:
    """What is wrong between values that are right by themselves."""
    if not values.machine_profiles:
        yield Finding("machine_profiles", "machine_profiles is empty; name one: cpu")
    if values.nats.servers % 2 == 0:
        yield finding(("nats", "servers"), f"{values.nats.servers} is even", values.nats.servers, "1, 3 or 5")
    if not any(values.nats.image_parts[1:]):
        wanted = Nats().image
        yield finding(("nats", "image"), f"{values.nats.image} is no image with a tag", values.nats.image, wanted)
    for name, scale in (("ingress", values.ingress), ("config", values.config)):
        yield from over((name,), scale.requests, BASE_LIMITS[name])
        if scale.min_scale > scale.max_scale:
            wanted = f"at most max_scale, {scale.max_scale}"
            yield finding((name, "min_scale"), f"{scale.min_scale} is not {wanted}", scale.min_scale, wanted)
    for name, (low, high) in TIMES.items():
        told = getattr(values, name)
        if not low <= int(told[:-1]) * (60 if told.endswith("m") else 1) <= high:
            yield finding((name,), f"{told} is not from {low}s to {high}s, as Knative wants it", told)
    yield from _memories(values)
    yield from over(("nats",), values.nats.requests, values.nats.limits)
    unfit = list(pod_settings.wrong(values.settings, values.nats.servers))
    yield from unfit
    if not unfit and not values.nats.storage.endswith("m"):
        aside = pod_settings.set_aside(pod_settings.limits(values.settings))
        if aside > values.nats.file_store:
            wanted = f"at least {math.ceil(aside * 10 / 9 / 2**30)}Gi"
            told = f"{values.nats.storage} is not {wanted}, of which streams set {aside / 2**30:.1f}Gi aside"
            yield finding(("nats", "storage"), told, values.nats.storage, wanted)


def _memories(values: Values) -> Iterator[Finding]:
    """Bytes in thousandths, which nobody means."""
    given: list[tuple[Place, dict[str, str]]] = [
        (("nats",), {"storage": values.nats.storage}),
        (("weights",), {"size": values.weights.size}),
        (("ingress", "requests"), values.ingress.requests),
        (("config", "requests"), values.config.requests),
        *((("nats", part), getattr(values.nats, part)) for part in _PARTS),
        *(
            (("machine_profiles", own, part), getattr(values.machine_profiles[own], part))
            for own in values.machine_profiles
            for part in _PARTS
        ),
    ]
    for at, quantities in given:
        for name, asked in quantities.items():
            if name != "cpu" and asked.endswith("m"):
                yield finding((*at, name), f"{asked} is in thousandths, which only cpu is", asked, "512Mi")


_PARTS: Final = ("requests", "limits")


def over(at: Place, requests: Mapping[str, str], limits: Mapping[str, str]) -> Iterator[Finding]:
    """What is asked for beyond its limit, which Kubernetes refuses."""
    for name, asked in requests.items():
        if name in limits and amount(asked) > amount(limits[name]):
            wanted = f"at most its limit, {limits[name]}"
            yield finding((*at, "requests", name), f"{asked} is not {wanted}", asked, wanted)
