"""Where what is fetched and made is kept, whoever the user is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from sie_bundle.cache import default_cache


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_in_the_users_cache_unless_a_setting_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache() == "/home/somebody/.cache/sie-knative"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache() == "/caches/sie-knative"
    monkeypatch.setenv("SIE_CACHE_DIR", "/models")
    assert default_cache() == "/models"


def test_a_cache_that_is_said_from_here_on_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert default_cache() == "/home/somebody/.cache/sie-knative"


def test_who_has_no_home_has_a_temporary_folder_that_nobody_else_can_write_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user whom nothing knows
    folder = Path(default_cache())
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert Path(default_cache()) == folder
    folder.chmod(0o777)
    assert Path(default_cache()) != folder


def test_where_nothing_can_be_written_there_is_a_place_that_says_so_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(NotADirectoryError):
        Path(default_cache()).mkdir(parents=True)
