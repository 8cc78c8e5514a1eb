"""What happened when: the steps of a cold start and of a lane's life, read from what the cluster tells.

Owns the reading of changes and log lines, and the table; pure. What is watched, and how, is in ``watched``. Times are
seconds since the epoch: of a change its arrival, for Kubernetes notes whole seconds only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from bench.table import markdown

from sie_sdk.types import Timing
from tests.cluster import kube
from tests.cluster.kube import Object

READY = "pod ready, says Kubernetes"


class Change(NamedTuple):
    """An object, as it was at ``at``; ``what``: ADDED, MODIFIED or DELETED."""

    at: float
    what: str
    thing: Object


class Step(NamedTuple):
    """Something that was reached."""

    at: float
    name: str


class Line(NamedTuple):
    """A line of a process's log."""

    at: float
    text: str


def lines(logged: str) -> list[Line]:
    """What a process of ours wrote, by its own clock, which is UTC's in a container; not what continues a line."""
    found = []
    for row in logged.splitlines():
        if match := re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*)", row):
            at = datetime.fromisoformat(f"{match[1]}+00:00").timestamp()
            found.append(Line(at + int(match[2]) / 1000, match[3]))
    return found


def reached(changes: Iterable[Change], name: str, holds: Callable[[Object], bool]) -> Step:
    """When it held first of any of the objects. Raises `AssertionError`: it never did."""
    for change in changes:
        if change.what != "DELETED" and holds(change.thing):
            return Step(change.at, name)
    raise AssertionError(f"never {name}")


def of(kind: str, changes: Iterable[Change]) -> list[Change]:
    """Those of the bundle's objects of that kind."""
    return [
        change
        for change in changes
        if change.thing["kind"] == kind
        and change.thing["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "sie-bundle"
    ]


def of_the_cluster(changes: Sequence[Change]) -> list[Step]:
    """From a Deployment without pods to a pod that Kubernetes calls ready."""
    pods = of("Pod", changes)
    return [
        reached(of("Deployment", changes), "a pod is asked for", lambda it: it["spec"]["replicas"] > 0),
        reached(pods, "pod created", lambda it: True),
        reached(pods, "pod scheduled", lambda it: "nodeName" in it["spec"]),
        reached(pods, READY, kube.ready),
    ]


def of_the_process(log: Sequence[Line], startup: Mapping[str, float], timing: Timing) -> list[Step]:
    """From its first instruction to its first vector.

    Args:
        log: the bundle's; it tells of its start-up by then, which says when the process began.
        startup: all of its milestones, as `/health` has them.
        timing: of the first answer, whose work was taken before the model was there.
    """
    (line,) = [line for line in log if "INFO ready: " in line.text]
    milestones = {name: float(at) for name, at in re.findall(r"'([\w ]+)': ([\d.]+)", line.text)}
    began = line.at - max(milestones.values())
    named = {
        "imports": "imported, but for torch",
        "connected": "connected to NATS",
        "engine": "torch imported",
        "pulling": "pulling work",
        "first model": "weights loaded, model warm",
    }
    computed = began + startup["first model"] + (timing.batch_wait_ms + timing.inference_ms) / 1000
    return [
        Step(began, "process begun"),
        *(Step(began + startup[key], name) for key, name in named.items()),
        Step(computed, "first vector computed"),
    ]


def wanted(log: Iterable[Line], service: str) -> list[tuple[float, int]]:
    """How many pods the demand holder asked for, by when it did."""
    found = [(line.at, re.search(rf"{re.escape(service)}: (\d+) pods wanted", line.text)) for line in log]
    return [(at, int(match[1])) for at, match in found if match]


def up(changes: Iterable[Change]) -> list[tuple[float, int, int]]:
    """How many pods there were, and how many of them ready, after each change; those on their way out are gone."""
    there: dict[str, bool] = {}
    counted: list[tuple[float, int, int]] = []
    for change in changes:
        name = kube.name(change.thing)
        if change.what == "DELETED" or "deletionTimestamp" in change.thing["metadata"]:
            there.pop(name, None)
        else:
            there[name] = kube.ready(change.thing)
        counts = (len(there), sum(there.values()))
        if counts != (counted[-1][1:] if counted else (0, 0)):
            counted.append((change.at, *counts))
    return counted


def lives(changes: Iterable[Change]) -> dict[str, dict[str, float]]:
    """When each pod was created, scheduled, ready, told to go, and gone."""
    pods: dict[str, dict[str, float]] = {}
    for change in changes:
        life = pods.setdefault(kube.name(change.thing), {})
        life.setdefault("created", change.at)
        if "nodeName" in change.thing["spec"]:
            life.setdefault("scheduled", change.at)
        if kube.ready(change.thing):
            life.setdefault("ready", change.at)
        if "deletionTimestamp" in change.thing["metadata"]:
            life.setdefault("told to go", change.at)
        if change.what == "DELETED":
            life.setdefault("gone", change.at)
    return pods


def rises(asked: Sequence[tuple[float, int]]) -> int:
    """How many pods were asked for in all, each time that it was for more."""
    before = [0, *(pods for _, pods in asked)]
    return sum(max(0, after - pods) for pods, after in pairwise(before))


def most(asked: Iterable[tuple[float, int]], until: float) -> int:
    """How many pods were asked for at most, up to then."""
    return max((pods for at, pods in asked if at <= until), default=0)


def table(title: str, steps: Iterable[Step], began: float) -> str:
    """Steps in order, seconds since ``began`` and since the step before."""
    rows, before = [], began
    for step in sorted(steps, key=lambda step: step.at):
        rows.append([step.name, f"{step.at - began:.2f}", f"{step.at - before:.2f}"])
        before = step.at
    return markdown(title, ["step", "at, s", "since the last"], rows)
