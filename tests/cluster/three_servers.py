"""The platform with NATS as a cloud has it: three servers that show each other certificates, in a namespace of its own.

Owns its values, volumes, certificates and end. What is deployed otherwise is ``deployed``'s, and is not touched.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import nats
import yaml
from nats.aio.client import Client

from sie_sdk import SIEClient
from tests.cluster import kube, place
from tests.cluster.place import NAMESPACE, NATS_IMAGE, NODE, REGISTRY, ROOT, TAG

log = logging.getLogger("e2e")
WHERE = f"{NAMESPACE}-nats"
INGRESS = f"http://sie-ingress.{WHERE}.svc.cluster.local"
SERVERS = 3
PODS = "app.kubernetes.io/name=sie-nats"


class ThreeServers:
    """All of it in `WHERE`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        told = yaml.safe_load((ROOT / "knative/overlays/local/values.yaml").read_text())
        told |= {"namespace": WHERE, "registry": REGISTRY, "tag": TAG}
        told["machine_profiles"]["cpu"]["max_scale"] = 1
        told["settings"] = {"demand": {"SIE_QUIET_S": "10"}}
        small = {"cpu": "10m", "memory": "64Mi"}  # of a node that has another deployment
        told["nats"] |= {
            "image": NATS_IMAGE,
            "storage_class": WHERE,
            "servers": SERVERS,
            "tls": True,
            "requests": small,
        }
        told["weights"] |= {"storage_class": WHERE}
        self.overlay = place.rendered(folder / "overlay", told)
        self.volumes = folder / "volumes.yaml"
        self.volumes.write_text(yaml.safe_dump_all(_volumes()))

    def up(self) -> None:
        """As knative/README.md says; returns when requests are accepted."""
        for number in range(SERVERS):
            (NODE / f"three/{number}").mkdir(parents=True, exist_ok=True)
        subprocess.run(["chown", "-R", "65532:65532", NODE], check=True)
        kube.kubectl("apply", "-f", str(self.volumes), namespace=None)
        kube.kubectl("apply", "-f", str(self.overlay / "rendered/kept.yaml"), namespace=None)
        kube.kubectl("create", "-f", "-", given=place.sie("manifests", "secrets", "--namespace", WHERE), namespace=None)
        self._certificates()
        kube.kubectl("apply", "-k", str(self.overlay), namespace=None)
        kube.kubectl("wait", "ksvc", "--all", "--for=condition=Ready", "--timeout=150s", namespace=WHERE)
        kube.kubectl("rollout", "status", "statefulset/sie-nats", "--timeout=120s", namespace=WHERE)

    def remove(self) -> None:
        """All of it."""
        kube.end(self.overlay, WHERE, self.volumes)
        subprocess.run(["rm", "-rf", NODE / "three"], check=True)

    def client(self) -> SIEClient:
        """The Python SDK on its ingress."""
        return SIEClient(INGRESS)

    async def operator(self) -> Client:
        """Connected to NATS as who may see everything, by names that the certificate has."""
        password = kube.secret("sie-nats-users", "operator", WHERE)
        trusted = ssl.create_default_context(cafile=self._folder / "my-ca.crt")
        names = [f"tls://sie-nats-{number}.sie-nats.{WHERE}.svc.cluster.local:4222" for number in range(SERVERS)]
        return await nats.connect(
            names, user="operator", password=password, tls=trusted, connect_timeout=5, error_cb=_heard
        )

    async def streams(self) -> list[dict[str, Any]]:
        """Every stream, as the cluster has it."""
        client = await self.operator()
        try:
            told = json.loads((await client.request("$JS.API.STREAM.LIST", b"", timeout=10)).data)
            found: list[dict[str, Any]] = told["streams"]
            return found
        finally:
            await client.close()

    def _certificates(self) -> None:
        """By the commands of the page."""
        page = (ROOT / "knative/README.md").read_text().split("## TLS")[1]
        (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for own, ours in ((".sie.svc.", f".{WHERE}.svc."), ("-n sie ", f"-n {WHERE} ")):
            assert own in commands
            commands = commands.replace(own, ours)
        told = subprocess.run(["sh", "-ec", commands], cwd=self._folder, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr


async def _heard(error: Exception) -> None:
    log.debug("a server that is away: %s", error)


def _volumes() -> list[dict[str, Any]]:
    """A folder of the node for each server, as a zone's disk, and the weights that the other deployment has."""
    (nats_volume, weights) = yaml.safe_load_all((ROOT / "knative/overlays/local/volume.yaml").read_text())
    copies = [_volume(nats_volume, f"nats-{number}", NODE / f"three/{number}") for number in range(SERVERS)]
    return [*copies, _volume(weights, "weights", NODE / "weights")]


def _volume(like: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    spec = like["spec"] | {"storageClassName": WHERE, "local": {"path": str(path)}}
    return like | {"metadata": like["metadata"] | {"name": f"{WHERE}-{name}"}, "spec": spec}
