"""What the tests deployed: put up from the overlay and the secrets, asked, and taken down.

Owns the deployment's life and its addresses. Pods and Services are asked through ``kube``.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import httpx

from sie_sdk import SIEClient
from tests.cluster import kube, place
from tests.cluster.place import NAMESPACE
from tests.platform import MODEL

SERVICE = "default-cpu"
"""The Service of the one lane that the local overlay deploys."""
INGRESS = f"http://sie-ingress.{NAMESPACE}.svc.cluster.local"
CONFIG = f"http://sie-config.{NAMESPACE}.svc.cluster.local"
BUNDLE = f"http://{SERVICE}.{NAMESPACE}.svc.cluster.local"


class Deployed:
    """The whole platform in `NAMESPACE`."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.overlay = place.overlay(folder, **values)
        self._folder = folder

    def up(self) -> None:
        """What outlives a deletion, secrets once, then ``kubectl apply -k``; returns when requests are accepted."""
        if place.on_kit():
            place.folders()
            kube.kubectl("apply", "-f", str(self.overlay / "volume.yaml"))
        kube.kubectl("apply", "-f", str(self.overlay / "rendered/kept.yaml"))
        if not kube.objects("secrets", "app.kubernetes.io/part-of=sie"):
            kube.kubectl("create", "-f", "-", given=place.sie("manifests", "secrets", "--namespace", NAMESPACE))
        self.apply()
        kube.kubectl("wait", "ksvc", "--all", "--for=condition=Ready", "--timeout=150s")
        kube.kubectl("rollout", "status", "statefulset/sie-nats", "deployment/sie-demand", "--timeout=150s")
        kube.until(self.accepts, 120)

    def apply(self) -> str:
        """``kubectl apply -k``; what it says of each object."""
        return kube.kubectl("apply", "-k", str(self.overlay))

    def remove(self, *, volumes: bool) -> None:
        """Delete everything, settings of earlier revisions included; with ``volumes``, what else is kept, too."""
        if volumes:
            kube.end(self.overlay, NAMESPACE, self.overlay / "volume.yaml" if place.on_kit() else None)
            if place.on_kit():
                subprocess.run(["rm", "-rf", place.NODE], check=True)
            return
        kube.kubectl("delete", "-k", str(self.overlay), "--ignore-not-found", "--timeout=150s")
        kube.kubectl("delete", "configmaps", "-l", "app.kubernetes.io/part-of=sie")

    def accepts(self) -> bool:
        """Whether the ingress is ready."""
        try:
            return httpx.get(f"{INGRESS}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False

    def client(self) -> SIEClient:
        """The Python SDK on the ingress."""
        return SIEClient(INGRESS)

    def workers(self) -> list[dict[str, Any]]:
        """The workers that are up, as the ingress sees them."""
        rows: list[dict[str, Any]] = self._health()["workers"]
        return rows

    def wanted(self) -> int:
        """The pods that the demand holder wants now."""
        return sum(lane["wanted"] for lane in self._health()["lanes"])

    def _health(self) -> dict[str, Any]:
        """How everything stands, as the ingress sees it. Patient: the gateway in front of it may be just gone."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                answers.append(httpx.get(f"{INGRESS}/health", timeout=10).raise_for_status())
            return bool(answers)

        kube.until(answered, 30)
        told: dict[str, Any] = answers[0].json()
        return told

    def encode(self, text: str, **headers: str) -> httpx.Response:
        """One plain request, without the SDK's patience."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"items": [{"text": text}]}
        return httpx.post(f"{INGRESS}/v1/encode/{MODEL}", json=body, headers=named, timeout=120)

    def to_zero(self, deadline_s: float = 150.0) -> None:
        """Return when no bundle has a pod, those that are ending included."""
        kube.until(lambda: not kube.objects("pods", kube.WORKERS), deadline_s)

    def secret(self, name: str, key: str) -> str:
        """A value of a Secret of the deployment."""
        return kube.secret(name, key)

    @property
    def admin(self) -> dict[str, str]:
        """The header of who may write the catalogue."""
        return {"Authorization": f"Bearer {self.secret('sie-tokens', 'admin')}"}

    def sie(self, *words: str) -> str:
        """What our command line prints, as one who may write."""
        token = self.secret("sie-tokens", "admin")
        return place.sie(*words, SIE_BASE_URL=INGRESS, SIE_ADMIN_TOKEN=token)
