"""Specs as the command line finds them: in folders, files and standard input, none of which may be empty unseen."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml

from sie_config import catalog
from sie_config.cli import folder
from sie_config.model import model_spec
from sie_sdk.errors import ConfigurationError
from tests.ingress.conftest import SPEC
from tests.sdk.cli.running import sie

TEXT = yaml.safe_dump(model_spec.document(SPEC))


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_bundle_and_a_machine_profile_that_do_not_exist_are_warned_of(tmp_path: Path) -> None:
    named = {"bundle": "defalt", "machine_profiles": ["cpu", "l44", "quantum"]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(model_spec.document(SPEC) | named))
    done = sie("config", "validate", str(tmp_path))
    told = [line for line in done.stderr.splitlines() if " bundle: " in line or " machine_profiles: " in line]
    assert done.exit_code == 0 and len(told) == 3, done.stderr
    assert told[0].endswith("bundle: defalt is no bundle of this version; did you mean default?")
    assert told[1].endswith("machine_profiles: l44 is no machine profile; did you mean l4?")
    assert "machine_profiles: quantum is no machine profile; known: cpu, t4, " in told[2]


def test_specs_come_from_folders_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    for path in (str(tmp_path), str(tmp_path / "a.yaml"), "-"):
        stdin(monkeypatch, TEXT)
        assert [each["id"] for each in folder.specs([path])] == [SPEC.id]


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n---\n", "null"])
def test_nothing_at_all_is_refused_for_pruned_it_would_delete_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    stdin(monkeypatch, text)
    for path, name in (("-", "standard input"), (str(tmp_path / "a.yaml"), "a.yaml")):
        with pytest.raises(ConfigurationError, match=f"There is no spec in .*{name}"):
            folder.specs([path])
    assert folder.specs([str(tmp_path)]) == []  # an empty file in a folder is how one says "none"
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(ConfigurationError, match="There is no spec in"):
        folder.specs([str(tmp_path)])


def test_a_standard_input_that_is_closed_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigurationError, match="Standard input is closed"):
        folder.specs(["-"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(ConfigurationError, match=r"a\.yaml cannot be read"):
        folder.specs([str(tmp_path)])


def test_a_file_that_is_named_twice_has_its_models_twice(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    with pytest.raises(ConfigurationError, match=r"is in .*a\.yaml already"):
        folder.specs([str(tmp_path), str(tmp_path)])


def test_files_count_whatever_the_case_of_their_ending_and_hidden_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "b.YAML").write_text(TEXT)
    (tmp_path / "._b.yaml").write_bytes(b"\x00\x05\x16\x07")
    assert [each["id"] for each in folder.specs([str(tmp_path)])] == [SPEC.id]
    assert SPEC.id in catalog.load(tmp_path)
    assert catalog.folder_of(str(tmp_path)) == tmp_path
