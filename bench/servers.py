"""Starts the servers that are measured, as a user would, and stops them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from sie_local.ports import free_port

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def wait_ready(url: str, within_s: float = 30.0) -> float:
    """Seconds until ``/readyz`` says 200."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", timeout=1).is_success:
                return time.monotonic() - began
        time.sleep(0.005)
    raise RuntimeError(f"{url} was not ready within {within_s} s")


@contextlib.contextmanager
def served() -> Iterator[str]:
    """``sie serve``; yields its URL."""
    port = free_port()
    with running("serve", "--port", str(port)):
        wait_ready(url := f"http://127.0.0.1:{port}")
        yield url


@contextlib.contextmanager
def up(state: Path, *options: str) -> Iterator[str]:
    """``sie up`` on a state folder; yields its URL."""
    port = free_port()
    with running("up", "--port", str(port), "--state", str(state), *options):
        wait_ready(url := f"http://127.0.0.1:{port}")
        yield url


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One ``sie`` command as a child process, drained at the end."""
    command = [str(Path(sys.executable).with_name("sie")), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
