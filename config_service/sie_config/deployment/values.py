"""What a platform engineer chooses for one cluster: the file ``values.yaml`` of an overlay, as a record.

Owns the record, its reading, and the addresses that follow from it. What Kubernetes is told by it stands in
``manifests`` (the bundles) and ``component`` (everything else); knative/README.md explains each value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sie_broker.events.allow_list import AllowList
from sie_config.deployment.machine_profile import Quantity
from sie_config.model import faults
from sie_config.model.model_spec import Name
from sie_sdk.errors import ConfigurationError

FILE: Final = "values.yaml"
ASKED_FOR: Final = 100
"""Pods that are asked of a Service at most, where its budget is smaller: ``kn`` may raise that at any time."""
Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Seconds = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(s|m)$")]
Component = Literal["ingress", "config", "demand", "bundle"]


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


class Nats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The NATS servers."""

    image: str = "nats:2.15.1-scratch"
    """With ``/nats-server``, at least 2.12."""
    servers: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """An odd number: of an even one, half are no majority."""
    storage: Quantity = "32Gi"
    """Of each. Streams set 12Gi of it aside (docs/settings.md)."""
    storage_class: str = ""
    """Empty: the cluster's own choice."""
    requests: dict[str, Quantity] = msgspec.field(default_factory=lambda: {"cpu": "500m", "memory": "1Gi"})
    limits: dict[str, Quantity] = msgspec.field(default_factory=lambda: {"memory": "2Gi"})
    tls: bool = False
    """The certificate is the Secret ``sie-nats-tls``, who may sign it the ConfigMap ``sie-nats-ca``."""


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where bundles keep fetched weights: in a volume of each pod, or in a claim that all share."""

    size: Quantity = "50Gi"
    storage_class: str = ""
    """Of a claim ``sie-weights`` that many nodes may write; empty: a volume of each pod, gone with it."""


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    cloud: Literal["local", "gke", "eks"]
    """Whose node selectors and tolerations bundles get; ``local``: none."""
    registry: str
    """What the names of images begin with, without the last slash."""
    tag: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
    machine_profiles: dict[Name, Lane]
    """Those that are deployed (``SIE_MACHINE_PROFILES``)."""
    namespace: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)] = "sie"
    cluster_domain: str = "cluster.local"
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
    ingress: Scale = Scale(min_scale=1)
    config: Scale = Scale(max_scale=2)
    nats: Nats = Nats()
    weights: Weights = Weights()
    reply_sinks: list[str] = []
    """Beginnings of URLs to which results may be sent (``SIE_REPLY_SINKS``): the Brokers of Knative Eventing, say."""
    settings: dict[Component, dict[str, str]] = {}
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
        ConfigurationError: names all faults.
    """
    path = folder / FILE
    values = faults.checked(faults.from_yaml(path), Values, origin=str(path))
    if not values.machine_profiles:
        raise ConfigurationError(f"{path}: machine_profiles is empty.", field="machine_profiles", hint="Name one: cpu.")
    if values.nats.servers % 2 == 0:
        raise ConfigurationError(
            f"{path}: nats.servers: {values.nats.servers} is even.", field="nats.servers", hint="One, three or five."
        )
    try:
        AllowList(",".join(values.reply_sinks), "")
    except ConfigurationError as error:
        error.field = "reply_sinks"
        raise
    for component, settings in values.settings.items():
        for name in settings:
            if not re.fullmatch(r"SIE_[A-Z0-9_]+", name):
                raise ConfigurationError(
                    f"{path}: settings.{component} has {name}, which is no setting.",
                    field=f"settings.{component}.{name}",
                    hint="docs/settings.md has them all.",
                )
    return values
