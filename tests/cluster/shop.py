"""An application beside the platform: a namespace of its own, and a Service in it that takes results.

Owns both, and what the Service was sent. Brokers, Triggers and sources are the tests' own.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.cluster import kube, recorder
from tests.cluster.place import NAMESPACE, REGISTRY, TAG

SHOP = f"{NAMESPACE}-shop"
SERVICE = "results"
ADDRESS = f"http://{SERVICE}.{SHOP}.svc.cluster.local"
BROKER = f"http://broker-ingress.knative-eventing.svc.cluster.local/{SHOP}/default"


class Event(NamedTuple):
    """An event that came in binary mode: the path it was posted to, its attributes, its data."""

    path: str
    attributes: dict[str, str]
    data: str

    @property
    def vector(self) -> list[float]:
        """Of a result: that of the one text."""
        (item,) = json.loads(self.data)["items"]
        values: list[float] = item["dense"]["values"]
        return values


class Shop:
    """The namespace `SHOP`."""

    def up(self) -> None:
        """Make it, without what an earlier one has left."""
        self.remove()
        kube.kubectl("create", "namespace", SHOP, namespace=None)
        kube.kn(
            *(
                "service",
                "create",
                SERVICE,
                "--image",
                f"{REGISTRY}/sie-ingress:{TAG}",
                "--pull-policy",
                "IfNotPresent",
            ),
            *("--cluster-local", "--scale", "1", "--request", "cpu=10m,memory=32Mi", "--cmd", "python"),
            *("--arg", "-c", "--arg", Path(recorder.__file__).read_text()),
            namespace=SHOP,
        )

    def remove(self) -> None:
        """Delete it with all that is in it; there may be none."""
        kinds = "triggers.eventing.knative.dev,brokers.eventing.knative.dev,pingsources.sources.knative.dev,ksvc"
        kube.kubectl("delete", kinds, "--all", "--timeout=100s", namespace=SHOP)
        # As in `kube.end`: a pod that may take minutes keeps its namespace for five.
        kube.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", namespace=SHOP)
        kube.kubectl("delete", "namespace", SHOP, "--ignore-not-found", "--timeout=150s", namespace=None)

    def received(self, path: str = "/") -> list[Event]:
        """What was posted to ``path`` so far."""
        events = [
            Event(
                each["path"],
                {name.removeprefix("ce-"): value for name, value in each["headers"].items() if name.startswith("ce-")},
                each["body"],
            )
            for each in self._told()
        ]
        return [event for event in events if event.path == path]

    def _told(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []

        def asked() -> bool:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(ADDRESS, timeout=10)
                if answer.is_success:
                    told.extend(answer.json())
                    return True
            return False

        kube.until(asked)
        return told

    def results(self) -> dict[str, list[Event]]:
        """The results, by the id of the event that asked for each."""
        by_cause: dict[str, list[Event]] = {}
        for event in self.received():
            by_cause.setdefault(event.attributes["causationid"], []).append(event)
        return by_cause
