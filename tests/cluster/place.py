"""Where the tests deploy: namespace, images, and the overlay that says so.

Owns the copy of ``knative/overlays/local`` for a namespace of the tests' own: what its ``values.yaml`` and
``volume.yaml`` name is renamed, and everything else is the overlay that people apply.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import kit
from tests.platform import MODEL

ROOT = Path(__file__).parents[2]
LOCAL = ROOT / "knative/overlays/local"
_OWN = f"-{process}" if (process := os.environ.get("PYTEST_XDIST_WORKER")) else ""
"""Of processes of tests that run beside each other: each has a deployment of its own."""
NAMESPACE = os.environ.get("SIE_E2E_NAMESPACE", "sie-e2e") + _OWN
REGISTRY = os.environ.get("SIE_E2E_REGISTRY", "dev.local")
TAG = os.environ.get("SIE_E2E_TAG", "e2e")
NATS_IMAGE = os.environ.get("SIE_E2E_NATS_IMAGE", "dev.local/nats:2")
NATS_CLASS, WEIGHTS_CLASS = (os.environ.get(f"SIE_E2E_{name}_CLASS", "") for name in ("NATS", "WEIGHTS"))
"""Storage classes of a cluster that is not the kit. Empty: its default; weights are fetched by each pod."""
NODE = Path(os.environ.get("SIE_E2E_NODE_DIR", "/var/lib")) / NAMESPACE
"""On the kit's node, which is this machine: where NATS and the weights are."""


def overlay(folder: Path, **changed: Any) -> Path:
    """The local overlay for `NAMESPACE`, rendered in ``folder``; ``changed``: further values."""
    told = local_values()
    told |= {"namespace": NAMESPACE, "registry": REGISTRY, "tag": TAG}
    # Seconds where people have a minute: a test waits for the end of each burst. Six are Knative's least.
    told |= {"window": "6s", "last_pod_kept": "0s"} | changed
    told["settings"] = {"demand": {"SIE_QUIET_S": "10", "SIE_SESSION_S": "20"}} | told.get("settings", {})
    told["nats"] |= {"image": NATS_IMAGE, "storage_class": NAMESPACE if on_kit() else NATS_CLASS}
    told["weights"] |= {"storage_class": NAMESPACE if on_kit() else WEIGHTS_CLASS}
    place = rendered(folder / "overlay", told)
    if on_kit():
        volumes = (LOCAL / "volume.yaml").read_text().replace("sie-local", NAMESPACE)
        volumes = volumes.replace("/var/lib/sie-", f"{NODE}/").replace("name: sie-", f"name: {NAMESPACE}-")
        (place / "volume.yaml").write_text(volumes)
    return place


def local_values() -> dict[str, Any]:
    """``values.yaml`` of the local overlay, as it is."""
    told: dict[str, Any] = yaml.safe_load((LOCAL / "values.yaml").read_text())
    return told


def rendered(place: Path, told: dict[str, Any]) -> Path:
    """An overlay of these values, as a platform engineer makes one: in a folder of its own."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "values.yaml").write_text(yaml.safe_dump(told))
    base = os.path.relpath(ROOT / "knative/base", place)
    (place / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [base], "components": ["rendered"]}))
    sie("manifests", "render", str(place))
    return place


def folders() -> None:
    """What the node must have: the folders of both volumes, and the weights of `MODEL`."""
    cache = Path.home() / ".cache/sie-knative/weights"
    sie("fetch", MODEL)
    for name in ("nats", "weights/weights"):
        (NODE / name).mkdir(parents=True, exist_ok=True)
    shutil.copytree(
        cache / MODEL.replace("/", "--"), NODE / "weights/weights" / MODEL.replace("/", "--"), dirs_exist_ok=True
    )
    subprocess.run(["chown", "-R", "65532:65532", NODE], check=True)


def on_kit() -> bool:
    """Whether the cluster is the kit's, whose node is this machine."""
    return not kit.absent() and kit.is_up()


def sie(*words: str, **settings: str) -> str:
    """What a command of ours prints; fails with what it complains of."""
    command = [sys.executable, "-m", "sie_local", *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"sie {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
