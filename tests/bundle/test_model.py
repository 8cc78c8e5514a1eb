"""Loading a model: what is checked before it counts as loaded, and what stays alone when it goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sie_bundle.engine import native
from sie_bundle.engine.cost import reading
from sie_bundle.models.model import EncoderModel
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Dense, Sparse, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model.make(tmp_path)


def refused(folder: Path, spec: ModelSpec | None = None, kernels: Path | None = native.KEPT) -> str:
    with pytest.raises(ModelLoadFailedError) as caught:
        tiny_model.load(spec or tiny_model.spec(folder), folder, kernels=kernels)
    return caught.value.message


def configure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def mapped(path: Path) -> int:
    """Bytes of a file's pages that are in this process's memory."""
    areas = Path("/proc/self/smaps").read_text().split(f" {path}\n")[1:]
    return sum(int(area.split("Rss:")[1].split()[0]) * 1024 for area in areas)


def rename(folder: Path, prefix: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_a_loaded_model_gives_unit_vectors_and_knows_its_bytes(folder: Path) -> None:
    model = tiny_model.load(tiny_model.spec(folder), folder)
    vectors = tiny_model.vectors(model, model.tokenizer.rows(["hello world", "ship"], 32))
    assert vectors.shape == (2, tiny_model.HIDDEN) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert model.bytes == sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())


def test_a_loaded_model_knows_what_its_passes_cost_before_its_first_request(folder: Path) -> None:
    model, other = (tiny_model.load(tiny_model.spec(folder), folder) for _ in range(2))
    assert model.fit.known and model.fit is not other.fit
    one, many = (model.fit.expected(reading(rows, 0.0)) for rows in ([8], [32] * 64))
    assert 0 < one < many < float("inf")
    assert model.fit.tokens_within(1.0) < float("inf"), "so that its first batches have a ceiling"


@pytest.mark.skipif(sys.platform != "linux", reason="no other system says so")
@pytest.mark.parametrize("kernels", [native.KEPT, None], ids=["compiled", "torch"])
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_of_the_files_weights_that_were_laid_out_no_page_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, kernels: Path | None
) -> None:
    monkeypatch.setattr(tiny_model, "INTERMEDIATE", 2**13)
    folder = tiny_model.make(tmp_path)
    model = tiny_model.load(tiny_model.spec(folder), folder, precision, kernels)
    assert model.bytes > 2**21
    assert 0 < mapped(folder / "model.safetensors") < 2**19
    rows = model.tokenizer.rows(["hello world"], 32)
    again = tiny_model.load(tiny_model.spec(folder), folder, precision, kernels)
    assert np.array_equal(tiny_model.vectors(model, rows), tiny_model.vectors(again, rows))


@pytest.mark.parametrize("prefix", ["bert.", "model."])
def test_weights_stored_under_a_prefix_are_found(folder: Path, prefix: str) -> None:
    plain = tiny_model.load(tiny_model.spec(folder), folder)
    rename(folder, prefix)
    prefixed = tiny_model.load(tiny_model.spec(folder), folder)
    rows = plain.tokenizer.rows(["hello"], 32)
    assert np.array_equal(tiny_model.vectors(plain, rows), tiny_model.vectors(prefixed, rows))


def test_only_the_text_with_a_broken_token_has_a_vector_that_is_not_finite(tiny: EncoderModel) -> None:
    vectors = tiny_model.vectors(tiny, tiny.tokenizer.rows(["hello", "poison ship", "world"], 32))
    assert np.isfinite(vectors).all(axis=1).tolist() == [True, False, True]


def test_a_model_whose_first_forward_pass_is_not_finite_does_not_load(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] = np.nan
    save_file(tensors, folder / "model.safetensors")
    assert "not finite" in refused(folder)


def test_dimensions_other_than_the_specs_are_refused_with_both(folder: Path) -> None:
    spec = msgspec.structs.replace(tiny_model.spec(folder), tasks=Tasks(dense=Dense(dim=33)))
    assert "32" in refused(folder, spec) and "33" in refused(folder, spec)


def test_a_vocabulary_larger_than_the_specs_is_refused_with_both(folder: Path) -> None:
    spec = msgspec.structs.replace(tiny_model.spec(folder), tasks=Tasks(sparse=Sparse(dim=60)))
    assert "61" in refused(folder, spec) and "60" in refused(folder, spec)


def test_more_tokens_than_positions_are_refused(folder: Path) -> None:
    assert "positions" in refused(folder, msgspec.structs.replace(tiny_model.spec(folder), max_sequence_length=65))


def test_a_tokenizer_with_more_tokens_than_the_model_embeds_is_refused(folder: Path) -> None:
    configure(folder, vocab_size=10)
    assert "tokenizer" in refused(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"num_hidden_layers": 0},
        {"id2label": {"first": "label"}},
        {"layer_types": ["full_attention"]},
        {"rope_scaling": "linear"},
        {"global_attn_every_n_layers": 0},
        {"head_dim": 0},
    ],
    ids=str,
)
def test_a_config_of_impossible_values_is_named(folder: Path, changes: dict[str, object]) -> None:
    configure(folder, **changes)
    assert "config.json" in refused(folder)


def test_a_config_that_is_not_unicode_is_named(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    assert "config.json" in refused(folder)


def test_no_labels_are_as_good_as_none_said(folder: Path) -> None:
    configure(folder, id2label=None)
    assert tiny_model.load(tiny_model.spec(folder), folder).labels == ()


def test_an_unknown_family_is_refused_with_those_there_are(folder: Path) -> None:
    assert "'mamba'" in refused(folder, msgspec.structs.replace(tiny_model.spec(folder), family="mamba"))


def test_a_checkpoint_of_another_family_is_refused(folder: Path) -> None:
    configure(folder, model_type="roberta")
    assert "'roberta'" in refused(folder)


def test_an_unknown_activation_is_refused(folder: Path) -> None:
    configure(folder, hidden_act="quadratic")
    assert "'quadratic'" in refused(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"{")
    assert name in refused(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert "encoder.layer.1.output.dense.weight" in refused(folder)


WORDS, PLACES = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
QUERY = "encoder.layer.0.attention.self.query"


@pytest.mark.parametrize("kernels", [native.KEPT, None], ids=["compiled", "torch"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        (WORDS, lambda table: table[:20]),
        (WORDS, lambda table: table[:, 0]),
        (PLACES, lambda table: table[:40]),
        (f"{QUERY}.weight", lambda weight: weight[0]),
        (f"{QUERY}.weight", lambda weight: np.concatenate([weight, weight], axis=1)),
        (f"{QUERY}.bias", lambda bias: bias[None]),
        (f"{QUERY}.weight", lambda weight: (weight * 100).astype(np.int8)),
    ],
    ids=["few words", "one number a word", "few places", "flat", "wide", "deep bias", "quantised"],
)
def test_a_tensor_that_cannot_be_what_its_name_says_is_named(
    folder: Path, name: str, change: Callable[[np.ndarray], np.ndarray], kernels: Path | None
) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = np.ascontiguousarray(change(tensors[name]))
    save_file(tensors, folder / "model.safetensors")
    assert name.removesuffix(".bias") in refused(folder, kernels=kernels)


def test_tensors_of_contradicting_shapes_fail_the_load_and_not_a_request(folder: Path) -> None:
    configure(folder, num_attention_heads=5)
    assert "first forward pass" in refused(folder, kernels=None)
