"""The whole platform for a test: ``sie up`` on a state folder of its own, and ways to hurt it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def wait_until(holds: Callable[[], bool], deadline_s: float = 60.0) -> None:
    """Return when ``holds()``; fail when it does not within the deadline."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.02)


class Platform:
    """One ``sie up``; ``url`` is known once it is up."""

    def __init__(self, state: Path, quiet_s: float = 60.0) -> None:
        self._state = state
        self._quiet_s = quiet_s
        self.url = ""

    def sie(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command against this platform's state folder."""
        env = os.environ | {"SIE_STATE_DIR": str(self._state)}
        command = [sys.executable, "-m", "sie_local", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    def up(self, port: int = 0, *options: str) -> None:
        """Start, with further ``options`` of ``sie up``, and return when requests are accepted."""
        done = self.sie("up", "--detach", "--port", str(port), "--quiet-s", str(self._quiet_s), *options)
        assert done.returncode == 0, done.stderr
        self.url = done.stdout.strip()

    def down(self) -> None:
        """Drain and stop."""
        self.sie("down")

    def pids(self) -> dict[str, int]:
        """Process ids by name; bundles are named by lane and number."""
        listed = json.loads(self.sie("status", "--json").stdout)["processes"]
        return {each["name"]: each["pid"] for each in listed if each["pid"]}

    def kill(self, name: str) -> int:
        """kill -9 the process whose name starts with ``name``; returns its id."""
        pid = next(pid for known, pid in self.pids().items() if known.startswith(name))
        os.kill(pid, signal.SIGKILL)
        return pid

    def workers(self) -> list[dict[str, Any]]:
        """The workers as the ingress sees them."""
        rows: list[dict[str, Any]] = httpx.get(f"{self.url}/health", timeout=5).json()["workers"]
        return rows

    def computed(self) -> int:
        """Texts computed by the workers that are up; a heartbeat may be a second behind."""
        return sum(worker["texts_computed"] for worker in self.workers())

    def encode(self, text: str, **headers: str) -> httpx.Response:
        """One plain request, without the SDK's patience."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"items": [{"text": text}]}
        return httpx.post(f"{self.url}/v1/encode/{MODEL}", json=body, headers=named, timeout=60)
