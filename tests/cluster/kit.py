"""The cluster kit: a real Kubernetes with Knative on this machine, in a network of its own.

Owns when it can be used, its start and its end, and how a command gets inside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).parents[3] / "shared/lab/cluster/cluster"
INSIDE = [str(KIT), "exec"]
"""Before a command: names of the cluster resolve, and ``kubectl`` and ``kn`` are there."""


def absent() -> str:
    """Why it cannot be used here; empty: it can."""
    if os.environ.get("SIE_E2E_KIT") == "0":
        return "SIE_E2E_KIT=0: the cluster kit is not to be used."
    if not KIT.exists():
        return f"There is no cluster kit at {KIT}."
    if os.geteuid() != 0:
        return "The cluster kit needs root."
    if shutil.which("apt-get") is None:
        return "The cluster kit needs Debian's packages."
    namespaces = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return "" if namespaces.returncode == 0 else "The cluster kit needs the right to make networks and mounts."


def is_up() -> bool:
    """Whether its API answers."""
    command = [*INSIDE, "kubectl", "get", "--raw", "/readyz"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def up() -> bool:
    """Start it; False when it was up already, and so is somebody else's to stop."""
    if is_up():
        return False
    subprocess.run([KIT, "up"], stdout=sys.stderr, check=True)
    return True


def eventing() -> None:
    """Add Knative Eventing, if it is not there yet."""
    command = [*INSIDE, "kubectl", "get", "namespace", "knative-eventing"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        subprocess.run([KIT, "eventing"], stdout=sys.stderr, check=True)


def down() -> None:
    """Stop it; its programs and images stay."""
    subprocess.run([KIT, "down"], stdout=sys.stderr, check=True)
