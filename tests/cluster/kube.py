"""A cluster asked and told through its own tools: ``kubectl`` and ``kn``, as people do.

Owns how they are called, what comes back (text, or objects), and waiting. What is deployed is ``deployed``'s.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.place import NAMESPACE

Object = dict[str, Any]
WORKERS = "app.kubernetes.io/name=sie-bundle"


def kubectl(*words: str, given: str | None = None, namespace: str | None = NAMESPACE) -> str:
    """What ``kubectl`` prints; fails the test with what it complains of."""
    return _run("kubectl", *(("-n", namespace) if namespace else ()), *words, given=given)


def kn(*words: str, namespace: str = NAMESPACE) -> str:
    """What ``kn`` prints."""
    return _run("kn", *words, "-n", namespace)


def objects(kind: str, selector: str = "", namespace: str = NAMESPACE) -> list[Object]:
    """Objects of a kind, as Kubernetes has them."""
    listed: list[Object] = json.loads(kubectl("get", kind, "-l", selector, "-o", "json", namespace=namespace))["items"]
    return listed


def one(kind: str, name: str, namespace: str = NAMESPACE) -> Object:
    """One object."""
    told: Object = json.loads(kubectl("get", kind, name, "-o", "json", namespace=namespace))
    return told


def secret(name: str, key: str, namespace: str = NAMESPACE) -> str:
    """A value of a Secret."""
    return base64.b64decode(one("secret", name, namespace)["data"][key]).decode()


def pods(selector: str = WORKERS) -> list[Object]:
    """Pods that are there and not on their way out."""
    return [pod for pod in objects("pods", selector) if "deletionTimestamp" not in pod["metadata"]]


def ready(thing: Object) -> bool:
    """Whether its condition Ready is true."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def begun(pod: Object, container: str) -> bool:
    """Whether a container of the pod has begun, and so has something to say."""
    states = pod.get("status", {}).get("containerStatuses", [])
    return any(each["name"] == container and each["state"].keys() & {"running", "terminated"} for each in states)


def until(holds: Callable[[], bool], deadline_s: float = 60.0) -> None:
    """`tests.platform.wait_until` for what costs a process to ask: twice a second."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.5)


def end(overlay: Path, namespace: str, volumes: Path | None) -> None:
    """Delete what an overlay made and the namespace with all that it keeps; ``volumes``: those, too."""
    kubectl("delete", "-k", str(overlay), "--ignore-not-found", "--timeout=150s", namespace=None)
    # As long as there are pods that may take ten minutes, Kubernetes looks at the namespace every five.
    kubectl("delete", "pods", "--all", "--grace-period=0", "--force", namespace=namespace)
    kubectl("delete", "namespace", namespace, "--ignore-not-found", "--timeout=150s", namespace=None)
    if volumes is not None:
        kubectl("delete", "-f", str(volumes), "--ignore-not-found", "--timeout=60s", namespace=None)


def name(thing: Object) -> str:
    """An object's name."""
    return str(thing["metadata"]["name"])


def kill(selector: str, namespace: str = NAMESPACE) -> list[str]:
    """Delete pods as a lost node does: at once, without a word to them; returns their names."""
    gone = [name(pod) for pod in objects("pods", selector, namespace)]
    how = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
    if gone:
        kubectl("delete", "pod", *gone, *how, namespace=namespace)
    return gone


def _run(program: str, *words: str, given: str | None = None) -> str:
    done = subprocess.run([program, *words], input=given, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
    return done.stdout


def absent() -> str:
    """Why there is no cluster to ask; empty: there is."""
    if shutil.which("kubectl") is None or shutil.which("kn") is None:
        return "kubectl and kn are not both installed"
    answered = subprocess.run(["kubectl", "get", "--raw", "/readyz"], capture_output=True, check=False, timeout=30)
    return "" if answered.returncode == 0 else "no cluster answers"


def lacks_knative() -> str:
    """What a cluster that answers does not have; empty: nothing."""
    command = ["kubectl", "get", "crd", "services.serving.knative.dev"]
    there = subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    return "" if there else "it has no Knative Serving"
