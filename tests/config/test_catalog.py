"""The catalogue as files: what is packaged, what a folder adds, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sie_config import catalog
from sie_sdk.errors import ConfigurationError, ModelNotFoundError

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def spec(model: str = "acme/tiny", **changes: str) -> str:
    fields = {
        "id": model,
        "family": "bert",
        "revision": "r1",
        "tasks": "{dense: {dim: 8}}",
        "sources": "[{kind: local, path: tiny}]",
        "max_sequence_length": "16",
    }
    return "\n".join(f"{name}: {value}" for name, value in (fields | changes).items())


def test_the_packaged_catalogue_is_valid_and_has_the_default_model() -> None:
    assert catalog.load()[MINILM].tasks.dense is not None


def test_a_folder_adds_models_and_replaces_packaged_ones(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec("acme/tiny"))
    (tmp_path / "b.yaml").write_text(spec(MINILM, max_sequence_length="32"))
    (tmp_path / "notes.txt").write_text("not a model")
    loaded = catalog.load(tmp_path)
    assert {MINILM, "acme/tiny"} <= loaded.keys()
    assert loaded[MINILM].max_sequence_length == 32


def test_all_faults_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec(max_sequence_length="0", colour="red"))
    (tmp_path / "b.yaml").write_text("id: [unclosed")
    (tmp_path / "c.yaml").write_text("- a list")
    (tmp_path / "d.yaml").write_bytes(b"\xff")
    (tmp_path / "e.yaml").write_text(spec("acme/good"))
    (tmp_path / "f.yaml").write_text(spec("acme/good"))
    with pytest.raises(ConfigurationError) as caught:
        catalog.load(tmp_path)
    faults = caught.value.details["faults"]
    assert [fault.split()[0] for fault in faults] == ["a.yaml", "b.yaml", "c.yaml", "d.yaml", "f.yaml"]
    for word in ("max_sequence_length", "colour", "not YAML", "not a mapping", "a second time"):
        assert word in caught.value.message


def test_a_folder_without_specs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no model spec"):
        catalog.load(tmp_path / "absent")


def test_models_are_selected_by_id_by_folder_or_all(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec("acme/tiny"))
    assert [spec.id for spec in catalog.select(str(tmp_path))] == ["acme/tiny"]
    assert [spec.id for spec in catalog.select(f" {MINILM.upper()}, ")] == [MINILM]
    assert MINILM in [spec.id for spec in catalog.select("")]


def test_an_unknown_selection_is_refused_and_named() -> None:
    with pytest.raises(ModelNotFoundError, match="acme/absent"):
        catalog.select(f"{MINILM},acme/absent")
