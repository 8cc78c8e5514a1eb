"""How bundle pods end: the status of their last moment and what they said, both gone from the cluster with the pod.

Owns the following of both from outside, by ``kubectl``, and deaths without a word, which Kubernetes has none of.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sie_broker.workers import STALE_S
from tests.cluster import kube, place
from tests.cluster.deployed import Deployed
from tests.cluster.place import NAMESPACE

log = logging.getLogger("e2e")

LAST = "jsonpath={.metadata.name} {.status.containerStatuses[?(@.name=='bundle')].state.terminated.exitCode}{'\\n'}"


class Endings:
    """Follows bundle pods; see `followed`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._following: list[subprocess.Popen[bytes]] = []
        self._follow("status", "get", "pods", "-l", kube.WORKERS, "-w", "-o", LAST)

    def follow(self) -> None:
        """Keep what the workers say from now on, and said until now.

        Also of a pod that is told to go before Kubernetes calls it ready: its worker may have answered by then.
        """
        for pod in kube.pods():
            if kube.begun(pod, "bundle") and not (self._folder / kube.name(pod)).exists():
                self._follow(kube.name(pod), "logs", "-f", kube.name(pod), "-c", "bundle")

    def exit_code(self, pod: str) -> int | None:
        """What its worker exited with; None: it did not yet."""
        told = re.search(rf"^{pod} (\d+)$", (self._folder / "status").read_text(), re.MULTILINE)
        return int(told[1]) if told else None

    def answered(self, deployed: Deployed) -> int:
        """How many requests the workers have answered: those that are up, and those that were followed and drained.

        Heartbeats tell it of those that are up, one a second, and nobody is believed for longer than `STALE_S`: what
        has stood for longer is no worker's last word of long ago, and none that is up is missing.
        """
        told, since = self._told(deployed), time.monotonic()

        def settled() -> bool:
            nonlocal told, since
            if (now := self._told(deployed)) != told:
                told, since = now, time.monotonic()
            return time.monotonic() - since > STALE_S + 1

        kube.until(settled)
        log.info("answered by %s", told)
        return sum(told.values())

    def _told(self, deployed: Deployed) -> dict[str, int]:
        drained = {pod.name: re.search(r"drained: (\d+) requests answered", pod.read_text()) for pod in self._logs()}
        gone = {name: int(told[1]) for name, told in drained.items() if told}
        up = {row["name"]: int(row["completed"]) for row in deployed.workers()}
        return {**gone, **{name: told for name, told in up.items() if not name.startswith(tuple(gone))}}

    def _logs(self) -> list[Path]:
        return [told for told in self._folder.iterdir() if told.name != "status"]

    def close(self) -> None:
        """Follow no longer."""
        for process in self._following:
            process.kill()
            process.wait()

    def _follow(self, name: str, *words: str) -> None:
        with (self._folder / name).open("wb") as told:
            self._following.append(subprocess.Popen(["kubectl", "-n", NAMESPACE, *words], stdout=told, stderr=told))


@contextlib.contextmanager
def followed(folder: Path) -> Iterator[Endings]:
    """Endings of pods while the context is open."""
    endings = Endings(folder)
    try:
        yield endings
    finally:
        endings.close()


def take_away(selector: str, namespace: str = NAMESPACE) -> list[str]:
    """Let pods go as those of a lost node, without a word to them; returns their names.

    Who is deleted by force still hears of it a second before; so on the kit, whose node is this machine, kill -9 first.
    """
    if place.on_kit():
        for pod in kube.objects("pods", selector, namespace):
            kill(pod)
    return kube.kill(selector, namespace)


def kill(pod: kube.Object, program: bytes = b"") -> None:
    """kill -9 everything in a pod on this machine, or what has ``program`` in its command line; the pod stays."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_in_it = pod["metadata"]["uid"] in (process / "cgroup").read_text()
            if is_in_it and program in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
