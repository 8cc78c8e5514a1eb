"""The state folder: one supervisor at a time, and what others can read of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from sie_local.state import ProcessRecord, Record, StateFolder, default_folder
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
