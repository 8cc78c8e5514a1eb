"""The README's command, as typed: one request from zero, and Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sie_local.ports import free_port
from tests.platform import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.weights,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder; nothing that was started on it is left running."""
    folder = tmp_path / "state"
    yield folder
    wait_until(lambda: not processes(folder))


def processes(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


def make(*words: str, state: Path) -> subprocess.Popen[str]:
    command = ["make", "run", f"STATE={state}", *words]
    # A session of its own stands for a terminal: Ctrl-C reaches all of its foreground processes.
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_make_run_once_shows_a_request_from_zero_and_ends(state: Path) -> None:
    done = make("ONCE=1", f"PORT={free_port()}", state=state)
    shown, _ = done.communicate(timeout=170)
    assert done.returncode == 0
    for told in ("Nothing runs", "202 Accepted, Retry-After", "First vectors after", "inference", "Cosine", "0.672"):
        assert told in shown


def test_make_run_serves_until_ctrl_c_and_drains(state: Path) -> None:
    shown = ""
    with make(f"PORT={free_port()}", state=state) as running:
        assert running.stdout is not None
        for line in running.stdout:
            shown += line
            if "Ctrl-C stops" in line:
                os.killpg(running.pid, signal.SIGINT)
    assert "Stopping: work in flight is finished" in shown
    assert "Stopped in" in shown


def test_make_run_on_a_taken_port_fails_with_the_reason(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = ["make", "run", "ONCE=1", f"PORT={taken.getsockname()[1]}", f"STATE={state}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "is taken" in done.stderr
