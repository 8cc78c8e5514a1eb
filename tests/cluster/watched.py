"""Objects of the cluster while they change, each change stamped when it arrives: to some ten milliseconds.

Owns the stream, which is Kubernetes' own watch through ``kubectl``, and what the demand holder says it asked for. What
the changes mean is in ``timeline``.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.cluster import kube, timeline
from tests.cluster.place import NAMESPACE
from tests.cluster.timeline import Change

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
LANE = "default/default/cpu"
"""As the demand holder writes it: pool, bundle, profile."""


def asked_for() -> list[tuple[float, int]]:
    """How many pods the holder that is up has asked for since its start, by when it did."""
    logged = kube.kubectl("logs", "-l", "app.kubernetes.io/name=sie-demand", "--tail=-1")
    return timeline.wanted(timeline.lines(logged), LANE)


class Watch:
    """Every change of what is at ``paths``, while the context is open; first comes what is there."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._arrived: list[Change] = []
        self._streams: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    @property
    def changes(self) -> Sequence[Change]:
        """In the order of their arrival."""
        return sorted(self._arrived, key=lambda change: change.at)

    def __enter__(self) -> Self:
        for path in self._paths:
            self._follow(path)
        return self

    def _follow(self, path: str) -> None:
        # The bookmark says that what was there has been told, and that from now on nothing is missed.
        asked = f"{path}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        stream = subprocess.Popen(["kubectl", "get", "--raw", asked], stdout=subprocess.PIPE, text=True)
        began = threading.Event()
        reader = threading.Thread(target=self._read, args=(stream, began), daemon=True)
        reader.start()
        self._streams.append(stream)
        self._readers.append(reader)
        assert began.wait(30), f"no watch of {path}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for stream in self._streams:
            stream.terminate()
            stream.wait()
        for reader in self._readers:
            reader.join(5)

    def _read(self, stream: subprocess.Popen[str], began: threading.Event) -> None:
        assert stream.stdout is not None
        with stream.stdout:
            for line in stream.stdout:
                told = json.loads(line)
                if told["type"] == "BOOKMARK":
                    began.set()
                else:
                    self._arrived.append(Change(time.time(), told["type"], told["object"]))
