"""Tensors in one file, in several, or as torch pickled them: found, fetched and read alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sie_bundle.engine.row import row
from sie_bundle.models.checkpoint import Checkpoint, Tensors
from sie_bundle.weights import hub, layout, weights
from sie_config.model.sources import HubSource
from sie_sdk.errors import ModelLoadFailedError, WeightsUnavailableError
from tests import tiny_model

REVISION = "0" * 40


def in_parts(folder: Path) -> None:
    """Three files and their index, as transformers writes a model that is too large for one."""
    tensors = load_file(folder / layout.WHOLE)
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    placed = {tensor: names[i % 3] for i, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({tensor: tensors[tensor] for tensor, own in placed.items() if own == name}, folder / name)
    (folder / layout.INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    (folder / layout.WHOLE).unlink()


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / layout.WHOLE), folder / layout.PICKLED)
    (folder / layout.WHOLE).unlink()


def pickled_long_ago(folder: Path) -> None:
    tensors = load_file(folder / layout.WHOLE)
    torch.save(tensors, folder / layout.PICKLED, _use_new_zipfile_serialization=False)
    (folder / layout.WHOLE).unlink()


LAYOUTS = pytest.mark.parametrize("relaid", [in_parts, pickled, pickled_long_ago])


@LAYOUTS
def test_a_model_computes_the_same_whatever_files_its_tensors_are_in(
    relaid: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tiny_model.make(tmp_path)
    rows = [row([2, 4, 5, 3])]
    wanted = tiny_model.vectors(tiny_model.load(tiny_model.spec(folder), folder), rows)
    relaid(folder)
    assert weights.here(tiny_model.spec(folder), None, tmp_path / "cache")
    assert np.array_equal(tiny_model.vectors(tiny_model.load(tiny_model.spec(folder), folder), rows), wanted)


@LAYOUTS
def test_the_hub_s_own_cache_may_hold_any_layout(
    relaid: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    made = tiny_model.make(tmp_path / "hf/models--acme--tiny/snapshots" / REVISION)
    relaid(made)
    into = tmp_path / "into"
    into.mkdir()
    hub.fetch(HubSource(repo="acme/tiny", revision=REVISION), weights.FILES, into)
    assert layout.files(into) == layout.files(made)
    assert all((into / name).read_bytes() == (made / name).read_bytes() for name in layout.files(made))
    assert dict(Tensors(into)).keys() == dict(Tensors(made)).keys()


def test_safetensors_go_before_what_is_pickled(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    (folder / layout.PICKLED).write_bytes(b"torn")
    assert layout.files(folder) == [layout.WHOLE]
    in_parts(folder)
    assert len(layout.files(folder)) == 3 and layout.PICKLED not in layout.files(folder)


def test_a_part_that_is_missing_is_a_model_that_is_not_here(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    in_parts(folder)
    (folder / layout.files(folder)[1]).unlink()
    assert weights.here(tiny_model.spec(folder), None, tmp_path / "cache") is None
    with pytest.raises(WeightsUnavailableError, match=r"has no model\.safetensors"):
        weights.resolve(tiny_model.spec(folder), None, tmp_path / "cache")


@pytest.mark.parametrize(
    "index",
    [
        b"torn",
        b"[]",
        b"{}",
        json.dumps({"weight_map": {"a": "../model.safetensors"}}).encode(),
        json.dumps({"weight_map": {"a": "/etc/hosts"}}).encode(),
    ],
)
def test_an_index_that_names_no_files_of_its_folder_is_none(index: bytes, tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path / "inner")
    (folder / layout.WHOLE).rename(tmp_path / layout.WHOLE)
    (folder / layout.INDEX).write_bytes(index)
    assert layout.files(folder) == []


def test_a_pickle_that_is_more_than_tensors_is_refused(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    (folder / layout.WHOLE).unlink()
    torch.save({"weight": torch.nn.Linear(2, 2)}, folder / layout.PICKLED)
    with pytest.raises(ModelLoadFailedError, match="cannot be read"):
        Tensors(folder)


@pytest.mark.parametrize("stored", [[1], torch.ones(3), None], ids=["a list", "a tensor", "nothing"])
def test_a_pickle_without_tensors_by_their_names_is_refused(tmp_path: Path, stored: object) -> None:
    folder = tiny_model.make(tmp_path)
    (folder / layout.WHOLE).unlink()
    (folder / layout.PICKLED).write_bytes(b"")
    if stored is not None:
        torch.save(stored, folder / layout.PICKLED)
    with pytest.raises(ModelLoadFailedError, match="cannot be read"):
        Tensors(folder)


def test_of_a_pickle_with_more_than_tensors_by_their_names_those_are_read(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    tensors = dict(Tensors(folder))
    (folder / layout.WHOLE).unlink()
    torch.save(tensors | {"epoch": 3, 0: torch.ones(2), "optimizer": {"state": {}}}, folder / layout.PICKLED)
    assert Checkpoint(tiny_model.spec(folder), folder).tensors.keys() == tensors.keys() | {"0"}


@pytest.mark.parametrize("kept", [0, 1, 100, 2000], ids="{} bytes".format)
@pytest.mark.parametrize("relaid", [pickled, pickled_long_ago])
def test_a_torn_pickle_is_known_as_damaged(relaid: Callable[[Path], None], kept: int, tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    relaid(folder)
    torn = folder / layout.PICKLED
    torn.write_bytes(torn.read_bytes()[:kept])
    with pytest.raises(ModelLoadFailedError, match="cannot be read") as caught:
        Tensors(folder)
    assert caught.value.details["reason"] == "corrupt"


def test_memory_that_runs_out_while_a_file_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled(tiny_model.make(tmp_path))
    short = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
    monkeypatch.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(short))
    with pytest.raises(RuntimeError, match="can't allocate"):
        Tensors(tmp_path)
