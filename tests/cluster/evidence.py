"""What to read after a failure: what there is, what happened, and what every process said.

Owns the commands and the folder, one of which is made for each failure. Where the checkout is, so that CI keeps it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.cluster.place import NAMESPACE, ROOT

FOLDER = Path(os.environ.get("SIE_E2E_EVIDENCE", ROOT / ".e2e"))
LAST = 30
"""The events of a report's own excerpt."""
_OURS = {
    "objects": ("get", "ksvc,revisions,podautoscalers,deployments,statefulsets,pods,pvc", "-o", "wide"),
    "events": ("get", "events", "--sort-by=.lastTimestamp"),
    "pods": ("describe", "pods"),
    "logs": ("logs", "-l", "app.kubernetes.io/part-of=sie", "--all-containers", "--prefix", "--tail=500"),
    "logs-before": ("logs", "-l", "app.kubernetes.io/part-of=sie", "--all-containers", "--prefix", "-p"),
}
_ANYBODYS = {
    "activator": ("-n", "knative-serving", "logs", "-l", "app=activator", "--tail=300"),
    "autoscaler": ("-n", "knative-serving", "logs", "-l", "app=autoscaler", "--tail=300"),
    "controller": ("-n", "knative-serving", "logs", "-l", "app=controller", "--tail=300"),
    "nodes": ("describe", "nodes"),
}


def collect(test: str) -> str:
    """Write all of it for a test that failed; returns the folder."""
    place = FOLDER / re.sub(r"[^\w.-]+", "_", test)
    place.mkdir(parents=True, exist_ok=True)
    listed = _said("get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()
    for namespace in (name for name in listed if name.startswith(NAMESPACE)):
        for name, words in _OURS.items():
            (place / f"{namespace}-{name}.txt").write_text(_said("-n", namespace, *words))
    for name, words in _ANYBODYS.items():
        (place / f"{name}.txt").write_text(_said(*words))
    return str(place)


def excerpt(folder: str) -> str:
    """What there is and what happened last, for a report whose reader has no more than the report."""
    listed, events = (Path(folder, f"{NAMESPACE}-{name}.txt").read_text() for name in ("objects", "events"))
    return "\n".join([listed, *events.splitlines()[-LAST:]])


def _said(*words: str) -> str:
    try:
        done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "kubectl did not answer within 60 s"
    return done.stdout + done.stderr
