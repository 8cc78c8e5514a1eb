"""What a test changes of the deployment while it runs, by the tools that people use, and puts back.

Owns settings of the demand holder and the bundle's Service. What comes of a change is the test's business.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.cluster import kube
from tests.cluster.deployed import SERVICE


@contextlib.contextmanager
def demand(**settings: str) -> Iterator[None]:
    """The demand holder with other settings, and then again with its own."""
    _set_demand(*(f"{name}={value}" for name, value in settings.items()))
    try:
        yield
    finally:
        _set_demand(*(f"{name}-" for name in settings))


@contextlib.contextmanager
def service(*back: str) -> Iterator[Callable[..., str]]:
    """What changes the bundle's Service by ``kn service update`` and returns its revision; in the end it is ``back``.

    A revision that never had a ready pod keeps the one it has until its progress deadline, and with it a GPU: the
    revisions of the changes are deleted, as people do who mend them.
    """
    changed: list[str] = []

    def change(*words: str) -> str:
        kube.kn("service", "update", SERVICE, *words)
        changed.append(revision())
        return changed[-1]

    try:
        yield change
    finally:
        kube.kn("service", "update", SERVICE, *back)
        kube.kn("revision", "delete", *changed, "--no-wait")


def revision() -> str:
    """The revision that all requests go to."""
    (target,) = kube.one("ksvc", SERVICE)["status"]["traffic"]
    return str(target["revisionName"])


def _set_demand(*words: str) -> None:
    kube.kubectl("set", "env", "deployment/sie-demand", *words)
    kube.kubectl("rollout", "status", "deployment/sie-demand", "--timeout=120s")
    kube.until(lambda: len(kube.objects("pods", "app.kubernetes.io/name=sie-demand")) == 1)
    kube.until(lambda: "holding demand" in kube.kubectl("logs", "deployment/sie-demand"))
