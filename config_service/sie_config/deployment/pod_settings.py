"""Further settings of the processes, as an overlay's values give them: whether each process can start with its own.

Owns which process reads which settings, and what pods and NATS servers can bear of them. The values are ``values``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Literal

from sie_broker import claim, process
from sie_broker.jetstream.streams import Limits, buckets, dead_stream, parcel_streams, payload_stream, work_stream
from sie_config.model.structure import Finding, finding, nearest
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError

Component = Literal["ingress", "config", "demand", "bundle"]
Of = Mapping[Component, Mapping[str, str]]
"""The settings of each process, by their names."""
READ_BY: Final[dict[Component, str]] = {
    "ingress": "sie_ingress.settings",
    "config": "sie_config.settings",
    "demand": "sie_broker.settings",
    "bundle": "sie_bundle.settings",
}
"""The module that holds the ``Settings`` of each process. By name, for some are above this package; whatever is
installed, they are there and import nothing else."""
OURS: Final[dict[str, tuple[str, ...]]] = {"bundle": ("SIE_NATS_URL", "SIE_BUNDLE", "SIE_PROFILE", "SIE_POOL")}
"""Settings that follow from the other values; of a process that is not named, ``SIE_NATS_URL`` alone."""
LEVEL: Final = "SIE_LOG_LEVEL"
"""Every process's."""
TIMEOUT_S: Final = 600
"""Of a request, and of its first byte: the cluster's own maximum. Also a pod's grace, of which queue-proxy keeps the
first `UNHEARD_S` to itself."""
UNHEARD_S: Final = 30
LONGEST_S: Final = {
    ("ingress", "SIE_REQUEST_TIMEOUT_S"): TIMEOUT_S - 10,  # its 202 comes after it
    ("demand", "SIE_SESSION_S"): TIMEOUT_S - 100,  # a session may be a fifth longer
    ("bundle", "SIE_DRAIN_S"): TIMEOUT_S - UNHEARD_S - 20,  # what is not done by then is given back
}
"""What has to be over before a pod's request or its grace is."""


def wrong(told: Of, servers: int) -> Iterator[Finding]:
    """Settings that their process does not know, cannot read, or cannot run with in a pod beside so many servers.

    Args:
        told: the settings of each process.
        servers: of NATS.
    """
    for component, own in told.items():
        for name, value in own.items():
            if (fault := _fault(component, name, value)) is not None:
                yield fault
            elif name == "SIE_STREAM_REPLICAS" and int(value) > servers:
                yield finding(("settings", component, name), f"{value} is more than nats.servers, {servers}", value)


def limits(told: Of) -> Limits:
    """The limits of streams that the config service would be given.

    Raises:
        ConfigurationError: one cannot be read.
    """
    return settings.read(Limits, told.get("config", {}))


def set_aside(own: Limits) -> int:
    """Bytes that the server sets aside for the streams that are there from the start; without these none starts."""
    every = [
        *buckets(own),
        *parcel_streams(own),
        *(payload_stream(store, own) for store in claim.STREAMS),
        dead_stream(own),
        work_stream("default", own),
    ]
    return sum(max(0, each["max_bytes"]) for each in every)


def _fault(component: Component, name: str, value: str) -> Finding | None:
    at = ("settings", component, name)
    if not re.fullmatch(r"SIE_[A-Z0-9_]+", name):
        return finding(at, "is no setting; docs/settings.md has them all")
    if name in OURS.get(component, ("SIE_NATS_URL",)):
        return finding(at, "follows from the other values: leave it out")
    try:
        if name == LEVEL:
            process.log_level({name: value})
            return None
        kind: Any = import_module(READ_BY[component]).Settings
        fields = {settings.variable(field): field for field in kind.__struct_fields__}
        if name not in fields:
            return finding(at, f"is no setting of the {component}; {nearest(name, (*fields, LEVEL))}")
        read = getattr(settings.read(kind, {name: value}), fields[name])
    except ConfigurationError as error:
        return finding(at, error.message.rstrip("."), value)
    longest = LONGEST_S.get((component, name))
    if longest is None or read <= longest:
        return None
    return finding(at, f"{value} is over {longest}: pods have {TIMEOUT_S} s for it", value, f"at most {longest}")
