"""``sie up`` as its user sees it: real processes, the command line, its errors, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from sie_local.state import Record, StateFolder

pytestmark = pytest.mark.e2e

Sie = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sie(tmp_path: Path) -> Iterator[Sie]:
    """Runs ``sie <words>`` on a state folder of its own; stops what it left up."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"SIE_STATE_DIR": str(tmp_path / "state")}
        command = [sys.executable, "-m", "sie_local", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)

    yield run
    run("down")


@pytest.fixture
def url(sie: Sie) -> str:
    """The URL of a platform that is up."""
    done = sie("up", "--detach", "--port", "0")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pids(sie: Sie) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in json.loads(sie("status", "--json").stdout)["processes"]}


def wait_until(holds: Callable[[], bool], deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_it_accepts_requests_reports_itself_small_and_leaves_nothing(sie: Sie, url: str) -> None:
    assert httpx.get(f"{url}/readyz").status_code == 200
    status = json.loads(sie("status", "--json").stdout)
    assert status["ready"] is True
    assert status["url"] == url
    assert sum(each["memory_bytes"] for each in status["processes"]) < 300e6
    assert "accepts requests" in sie("status").stdout
    running = pids(sie)
    assert sorted(running) == ["config", "demand", "ingress", "nats", "supervisor"]
    assert sie("down").returncode == 0
    wait_until(lambda: all(gone(pid) for pid in running.values()))
    down = sie("status")
    assert (down.returncode, "Nothing is up" in down.stdout) == (1, True)


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_second_up_on_the_same_folder_is_told_who_runs(sie: Sie, url: str, detach: tuple[str, ...]) -> None:
    second = sie("up", "--port", "0", *detach)
    assert second.returncode != 0
    assert "already up on" in second.stderr
    assert url in second.stderr
    assert str(pids(sie)["supervisor"]) in second.stderr


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_a_taken_port_is_one_clear_line(sie: Sie, detach: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = sie("up", "--port", str(port), *detach)
    assert refused.returncode != 0
    assert f"Port {port} is taken" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sie("status").returncode == 1


def test_a_start_that_says_nothing_is_told_with_its_status_and_its_log(sie: Sie, tmp_path: Path) -> None:
    logs = tmp_path / "state/logs"
    logs.mkdir(parents=True)
    (logs / "up.log").symlink_to("/dev/null")  # as a full disk has it
    refused = sie("up", "--port", "0", "--models", "no/such-model", "--detach")
    assert refused.returncode == 1
    assert "It ended with status 1" in refused.stderr and str(logs / "up.log") in refused.stderr


def test_what_was_logged_before_is_kept_and_not_told_again(sie: Sie, tmp_path: Path) -> None:
    for model in ("no/such-model", "no/other-model"):
        refused = sie("up", "--port", "0", "--models", model, "--detach")
        assert model in refused.stderr
    assert "no/such-model" not in refused.stderr
    assert "no/such-model" in (tmp_path / "state/logs/up.log").read_text()


def test_down_at_once_after_up_ends_what_comes_up_and_nobody_else(sie: Sie, tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    somebody = subprocess.Popen(["sleep", "600"])
    folder.path.mkdir()
    (folder.path / "up.json").write_bytes(msgspec.json.encode(Record(somebody.pid, "http://127.0.0.1:1", 1.0)))
    command = [sys.executable, "-m", "sie_local", "up", "--port", "0", "--state", str(folder.path)]
    with subprocess.Popen(command) as up:
        wait_until(folder.held)
        wait_until(lambda: (record := folder.read()) is not None and record.pid == up.pid)
        assert sie("down").stdout.startswith("Stopped")
        up.wait(30)
    assert somebody.poll() is None
    somebody.kill()
    somebody.wait()


def test_a_model_that_does_not_exist_stops_the_start_with_the_reason(sie: Sie) -> None:
    refused = sie("up", "--port", "0", "--models", "no/such-model")
    assert refused.returncode == 1
    assert "no/such-model" in refused.stderr


@pytest.mark.parametrize("name", ["ingress", "config", "demand", "nats"])
def test_a_killed_process_comes_back(sie: Sie, url: str, name: str) -> None:
    killed = pids(sie)[name]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pids(sie).get(name, killed) != killed)
    wait_until(lambda: sie("status").returncode == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_killed_supervisor_leaves_nothing_and_the_next_one_starts(sie: Sie, url: str) -> None:
    running = pids(sie)
    os.kill(running["supervisor"], signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for name, pid in running.items() if name != "supervisor"))
    again = sie("up", "--detach", "--port", "0")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("level", ["ERROR", "DEBUG"])
def test_it_comes_up_whatever_is_logged(sie: Sie, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("SIE_LOG_LEVEL", level)
    done = sie("up", "--detach", "--port", "0")
    assert done.returncode == 0, done.stderr


def test_a_server_of_this_machine_is_not_looked_for_behind_a_proxy(
    sie: Sie, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert "accepts requests" in sie("status").stdout


@pytest.mark.weights
def test_a_tour_is_on_any_port_and_by_no_proxy(sie: Sie, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    done = sie("tour", "--once", "--port", "0")
    assert (done.returncode, "The same request warm" in done.stdout) == (0, True), done.stderr


def test_down_with_nothing_up_says_so(sie: Sie) -> None:
    done = sie("down")
    assert (done.returncode, "Nothing is up" in done.stdout) == (0, True)


def test_a_tour_is_of_its_own_platform_and_not_of_whoever_has_the_port(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sie_sdk.cli", "tour", "--once", "--port", url.rpartition(":")[2]]
    command += ["--state", str(tmp_path / "tour")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "sie up did not start" in done.stderr
    assert "Nothing runs" not in done.stdout
