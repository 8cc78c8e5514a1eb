"""``sie fetch`` as its user sees it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from sie_bundle import commands
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_sdk.cli import main
from tests import tiny_model


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, ModelSpec]:
    """Two models of the catalogue: one that is there, and one that no source has."""
    monkeypatch.setenv("SIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SIE_WEIGHTS_DIR", str(tmp_path))
    spec = tiny_model.spec(tiny_model.make(tmp_path / "tiny"))
    lost = msgspec.structs.replace(spec, id="test/lost", sources=(LocalSource(path="lost"),))
    monkeypatch.setattr("sie_config.catalog.load", lambda: {spec.id: spec, lost.id: lost})
    return {spec.id: spec, lost.id: lost}


@pytest.mark.usefixtures("catalogue")
def test_it_prints_the_folder_and_the_source(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["fetch", "test/tiny"])
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "tiny") in done.stdout and "from folder" in done.stdout


@pytest.mark.usefixtures("catalogue")
def test_a_failure_ends_with_status_one_and_says_what_was_tried(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["fetch", "test/lost"])
    assert done.exit_code == 1
    assert f"folder lost: no folder {tmp_path / 'lost'}" in done.stderr


@pytest.mark.usefixtures("catalogue")
def test_an_unknown_model_ends_with_status_one_and_is_named() -> None:
    done = CliRunner().invoke(main, ["fetch", "test/tony"])
    assert done.exit_code == 1
    assert "test/tony" in done.stderr and "test/tiny" in done.stderr


def test_the_default_is_a_model_of_the_packaged_catalogue() -> None:
    from sie_config import catalog

    assert commands.DEFAULT_MODEL in catalog.load()
