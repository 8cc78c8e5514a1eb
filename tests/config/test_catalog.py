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
    for word in ("max_sequence_length", "colour", "b.yaml cannot be read", "not a mapping", "a second time"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max_sequence_length: 7", "a.yaml cannot be read: the key 'max_sequence_length' is there twice"),
        ("parameters: " + "9" * 5000, "a.yaml cannot be read: "),
        ("parameters: 0b_", "a.yaml cannot be read: "),
        ("profiles: {p: {lora: {scale: " + "9" * 400 + ", sources: []}}}", "has over 64 bits"),
        ("profiles: &p {p: {}}", "a.yaml cannot be read: there is an anchor or an alias in line 7"),
        ("--- {}", "a.yaml holds 2 documents, not one"),
    ],
    ids=lambda value: value[:20],
)
def test_a_file_is_read_as_strictly_as_what_comes_to_the_api(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{spec()}\n{line}\n")
    with pytest.raises(ConfigurationError) as caught:
        catalog.read(tmp_path)
    assert said in caught.value.message


def test_a_revision_may_look_like_a_date(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec(revision="2024-13-45"))
    assert catalog.read(tmp_path)["acme/tiny"].revision == "2024-13-45"


def test_ids_that_differ_in_case_only_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec("acme/Tiny"))
    (tmp_path / "b.yaml").write_text(spec("Acme/tiny"))
    with pytest.raises(ConfigurationError, match=r"b\.yaml defines acme/Tiny a second time"):
        catalog.read(tmp_path)
    (tmp_path / "a.yaml").write_text(spec(MINILM.upper()))
    loaded = catalog.load(tmp_path)
    assert MINILM not in loaded and MINILM.upper() in loaded


def test_a_folder_without_specs_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no model spec"):
        catalog.load(tmp_path / "absent")


def test_models_are_selected_by_id_by_folder_or_all(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(spec("acme/tiny"))
    assert [spec.id for spec in catalog.select(str(tmp_path))] == ["acme/tiny"]
    assert [spec.id for spec in catalog.select(str(tmp_path.rename(tmp_path.with_name("a,b"))))] == ["acme/tiny"]
    assert [spec.id for spec in catalog.select(f" {MINILM.upper()}, ")] == [MINILM]
    assert MINILM in [spec.id for spec in catalog.select("")]


def test_models_may_be_listed_at_any_length() -> None:
    ids = [spec.id for spec in catalog.load().values() if spec.status == "ready"]
    names = [name.rpartition("/")[2] for name in ids]
    assert len(",".join(names)) > 255, "no file has so long a name"
    assert [spec.id for spec in catalog.select(",".join(names))] == ids
    with pytest.raises(ModelNotFoundError):
        catalog.select("a" * 300)


def test_a_folder_of_a_models_own_files_is_not_taken_for_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (MINILM, "specs", "empty"):
        Path(folder).mkdir(parents=True)
    Path("specs/a.yaml").write_text(spec("acme/tiny"))
    assert [spec.id for spec in catalog.select(MINILM)] == [MINILM] and catalog.folder_of(MINILM) is None
    assert catalog.folder_of("specs") == Path("specs") and catalog.folder_of("") is None
    with pytest.raises(ConfigurationError, match="no model spec"):
        catalog.select("empty")
    Path(MINILM, "a.yaml").write_text(spec("acme/tiny"))
    assert [spec.id for spec in catalog.select(MINILM)] == ["acme/tiny"]


def test_an_unknown_selection_is_refused_and_named() -> None:
    with pytest.raises(ModelNotFoundError, match="acme/absent"):
        catalog.select(f"{MINILM},acme/absent")
