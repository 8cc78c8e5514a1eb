"""``sie up`` and ``sie tour`` when their terminal is closed, takes nothing or says Ctrl-C: nothing is left or hangs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from sie_local.ports import free_port
from sie_local.state import Record, StateFolder
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    """A state folder; what is left up on it is killed."""
    folder = StateFolder(tmp_path / "state")
    yield folder
    if (record := folder.read()) is not None:
        os.kill(record.pid, signal.SIGKILL)


def command(folder: StateFolder, *words: str) -> list[str]:
    return [sys.executable, "-m", "sie_local", *words, "--port", str(free_port()), "--state", str(folder.path)]


def up(folder: StateFolder) -> Record:
    """What is up there, once it is ready."""
    wait_until(lambda: (record := folder.read()) is not None and record.ready)
    record = folder.read()
    assert record is not None
    return record


def gone(record: Record) -> bool:
    pids = (record.pid, *(process.pid for process in record.processes))
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


def close_terminal_on(
    words: list[str], seen: Callable[[bytes], bool], *, outlives: bool = False
) -> subprocess.Popen[bytes]:
    """Run a command as the first of a terminal, and close that when ``seen`` of what was printed."""
    master, slave = os.openpty()
    words = [*(["nohup"] if outlives else []), *words]

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=take_terminal
    )
    os.close(slave)
    printed = b""
    while not seen(printed):
        printed += os.read(master, 4096)
    os.close(master)
    return process


def test_a_closed_terminal_ends_it_and_nothing_is_left(folder: StateFolder) -> None:
    process = close_terminal_on(command(folder, "up"), lambda printed: b"Ready in" in printed and up(folder).ready)
    record = folder.read()
    process.wait(30)
    assert record is None or gone(record)


def test_a_closed_terminal_ends_a_tour_and_what_it_has_started(folder: StateFolder) -> None:
    records = []

    def nothing_runs(printed: bytes) -> bool:
        if b"Nothing runs" in printed:
            records.append(up(folder))
        return bool(records)

    process = close_terminal_on(command(folder, "tour"), nothing_runs)
    process.wait(60)
    wait_until(lambda: gone(records[0]))


@pytest.mark.parametrize("word", ["up", "tour"])
def test_what_was_started_to_outlive_its_terminal_does(
    folder: StateFolder, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where nohup writes
    process = close_terminal_on(command(folder, word), lambda printed: up(folder).ready, outlives=True)
    record = up(folder)
    httpx.get(f"{record.url}/readyz", trust_env=False).raise_for_status()
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    httpx.get(f"{record.url}/readyz", trust_env=False).raise_for_status()
    process.terminate()
    process.wait(60)
    wait_until(lambda: gone(record))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_child_that_dies_comes_back_although_nothing_can_be_said(folder: StateFolder) -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command(folder, "up"), stdout=full, stderr=full)
    try:
        (demand,) = (each for each in up(folder).processes if each.name == "demand")
        os.kill(demand.pid, signal.SIGKILL)
        wait_until(lambda: ("demand", 1, "ready") in [(p.name, p.restarts, p.state) for p in up(folder).processes])
    finally:
        process.terminate()
        process.wait(30)


def test_ctrl_c_while_it_comes_up_in_the_background_lets_nothing_come_up(folder: StateFolder) -> None:
    process = subprocess.Popen(command(folder, "up", "--detach"), stdout=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: (record := folder.read()) is not None and bool(record.processes))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode != 0) == (b"", True)
    wait_until(lambda: not folder.held())
