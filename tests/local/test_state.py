"""The state folder: one supervisor at a time, and what others can read of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from sie_local.commands import down
from sie_local.state import ProcessRecord, Record, StateFolder, default_folder
from sie_local.status import look
from sie_sdk.errors import ConfigurationError

RECORD = Record(
    pid=os.getpid(), url="http://127.0.0.1:8080", started=1.0, processes=(ProcessRecord("nats", 1, "ready", 1.0),)
)


def test_a_folder_is_held_by_one_and_the_second_is_told_by_whom(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    with folder.locked():
        folder.write(RECORD)
        with pytest.raises(ConfigurationError, match=rf"already up .*pid {os.getpid()}, http://127.0.0.1:8080"):
            StateFolder(folder.path).locked().__enter__()
        assert StateFolder(folder.path).read() == RECORD


def test_a_folder_is_free_again_afterwards_and_says_that_nothing_runs(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    for _ in range(2):
        with folder.locked():
            folder.write(RECORD)
            assert folder.held()
        assert not folder.held()
        assert folder.read() is None


def test_a_record_left_by_a_killed_supervisor_is_not_believed(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with folder.locked():
        folder.write(RECORD)
        left = (tmp_path / "up.json").read_bytes()
    (tmp_path / "up.json").write_bytes(left)
    assert folder.read() is None


def test_the_record_is_json_a_person_can_read(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with folder.locked():
        folder.write(RECORD)
        assert json.loads((tmp_path / "up.json").read_text())["processes"][0]["name"] == "nats"


def test_looking_at_a_folder_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    assert StateFolder(tmp_path / "none").read() is None
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"state folder .* cannot be used"):
        StateFolder(tmp_path / "file").locked().__enter__()


def test_a_folder_that_vanishes_does_not_stop_its_supervisor(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    with folder.locked():
        shutil.rmtree(folder.path)
        folder.write(RECORD)


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_folder() == Path("/x/sie-knative")


def test_the_default_folder_of_somebody_without_a_home_asks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # any user of a container that has no entry
    with pytest.raises(ConfigurationError, match="Set SIE_STATE_DIR"):
        default_folder()


def test_a_record_left_by_a_killed_supervisor_is_not_taken_for_that_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(RECORD, pid=1)))
    folder = StateFolder(tmp_path)
    with folder.locked():
        record = folder.read()
        assert record is not None
        assert (record.pid, record.ready, record.url) == (os.getpid(), False, "")
        assert look(folder).up and not look(folder).ready
        with pytest.raises(ConfigurationError, match=rf"already up .*\(pid {os.getpid()}\)\."):
            StateFolder(folder.path).locked().__enter__()


def test_a_port_that_somebody_else_answers_at_is_not_ready(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    with folder.locked(), socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            with other.accept()[0] as asked:
                asked.recv(1024)
                asked.sendall(b"220 mail.example.org ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        folder.write(msgspec.structs.replace(RECORD, url=url))
        assert not look(folder).ready
        thread.join()


@pytest.mark.parametrize(("error", "said"), [(ProcessLookupError, "not to be seen"), (PermissionError, "another user")])
def test_what_cannot_be_stopped_from_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], said: str
) -> None:
    def refused(pid: int, number: int) -> None:
        raise error

    monkeypatch.setattr("os.kill", refused)
    with StateFolder(tmp_path).locked():
        result = CliRunner().invoke(down, ["--state", str(tmp_path)])
    assert (result.exit_code, said in result.output, f"pid {os.getpid()}" in result.output) == (1, True, True)
