"""The random models are what they say: deterministic, complete, and such that every tensor and setting matters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file

from tests.golden import random_models, tiny_tokenizers
from tests.golden.random_kinds import KINDS

TEXT = "hello world ship abc lighthouse no yes query coffee defg hijk"
VISIBLE = 0.01
"""A difference that no tolerance of a test hides; states are around one."""
# Added to all scores of a query alike, it cancels out in the softmax.
WITHOUT_EFFECT = ("attention.self.key.bias", "attention.k_lin.bias", "attention.attn.k.bias", "attention.key.bias")
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"hidden_act": "relu"}),
    ("roberta", {"pad_token_id": 0}),
    ("xlm-roberta", {"pad_token_id": 0}),
    ("mpnet", {"hidden_act": "relu"}),
    ("modernbert", {"local_attention": 10}),
    ("modernbert", {"local_rope_theta": 160000.0}),
    ("modernbert", {"global_rope_theta": 10000.0}),
    ("modernbert", {"global_attn_every_n_layers": 2}),
    ("modernbert-reranker", {"classifier_pooling": "cls"}),
    ("deberta-v2", {"pos_att_type": "c2p"}),
    ("qwen2", {"rope_theta": 10000.0}),
    ("llama", {"rope_theta": 10000.0}),
    ("mistral", {"sliding_window": 9}),
    ("gemma2", {"sliding_window": 9}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"query_pre_attn_scalar": 12}),
    ("embedding-gemma", {"use_bidirectional_attention": False}),
    ("embedding-gemma", {"sliding_window": 10}),
    ("embedding-gemma", {"rope_local_base_freq": 1000000.0}),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("random")
    return {kind: random_models.make(kind, root / kind) for kind in KINDS}


def ids_of(folder: Path) -> list[int]:
    return list(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids)


def changed(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float(np.abs(value - other[name]).max()) for name, value in one.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_computes_finite_outputs_of_the_promised_shapes(kind: str, folders: dict[str, Path]) -> None:
    ids = ids_of(folders[kind])
    config = json.loads((folders[kind] / "config.json").read_text())
    found = random_models.reference(kind, folders[kind], ids)
    assert found["states"].shape == (len(ids), 32)
    assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in found.values())
    assert max(ids) < config["vocab_size"]
    if "logits" in found:
        last = len(config["id2label"]) if "id2label" in config else config["vocab_size"]
        per_token = "ForSequenceClassification" not in KINDS[kind].architecture
        assert found["logits"].shape == ((len(ids), last) if per_token else (last,))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_model_and_another_one_another(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    first = load_file(folders[kind] / "model.safetensors")
    again = load_file(random_models.make(kind, tmp_path / "again") / "model.safetensors")
    other = load_file(random_models.make(kind, tmp_path / "other", seed=1) / "model.safetensors")
    assert first.keys() == again.keys() == other.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_matters(kind: str, folders: dict[str, Path]) -> None:
    folder, ids = folders[kind], ids_of(folders[kind])
    whole = random_models.reference(kind, folder, ids)
    model = random_models.model(kind, folder)
    for name, parameter in model.named_parameters():
        unused = name.endswith(WITHOUT_EFFECT) or (model.base_model is model and "pooler" in name)
        body_of_a_head = model.base_model is not model and name.startswith(model.base_model_prefix)
        if unused or body_of_a_head:  # the body is tested as a kind of its own
            continue
        with torch.no_grad():
            kept = parameter.clone()
            parameter.zero_()
            without = random_models.reference(kind, folder, ids)
            parameter.copy_(kept)
        assert changed(whole, without) > VISIBLE, name


@pytest.mark.parametrize(("kind", "setting"), SETTINGS, ids=str)
def test_settings_matter(kind: str, setting: dict[str, Any], folders: dict[str, Path], tmp_path: Path) -> None:
    ids = ids_of(folders[kind])
    other = shutil.copytree(folders[kind], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    assert all(config[name] != value for name, value in setting.items())
    (other / "config.json").write_text(json.dumps(config | setting))
    found = random_models.reference(kind, other, ids)
    assert changed(random_models.reference(kind, folders[kind], ids), found) > VISIBLE


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_words_matters(kind: str, folders: dict[str, Path]) -> None:
    ids = ids_of(folders[kind])
    swapped = [ids[0], ids[2], ids[1], *ids[3:]]
    states, other = (random_models.reference(kind, folders[kind], row)["states"] for row in (ids, swapped))
    assert np.abs(states[1] - other[2]).max() > VISIBLE


@pytest.mark.parametrize("kind", ["bert", "bert-reranker", "electra", "albert", "nomic-bert"])
def test_token_types_matter(kind: str, folders: dict[str, Path]) -> None:
    ids = ids_of(folders[kind])
    second = [0] * 5 + [1] * (len(ids) - 5)
    one = random_models.reference(kind, folders[kind], ids)
    assert changed(one, random_models.reference(kind, folders[kind], ids, [0] * len(ids))) == 0
    assert changed(one, random_models.reference(kind, folders[kind], ids, second)) > VISIBLE


def test_bge_m3_has_its_two_more_layers_in_both_forms(folders: dict[str, Path]) -> None:
    for name, rows in (("sparse_linear", 1), ("colbert_linear", 32)):
        as_published = torch.load(folders["bge-m3"] / f"{name}.pt", weights_only=True)
        safe = load_file(folders["bge-m3"] / f"{name}.safetensors")
        assert safe["weight"].shape == (rows, 32) and safe["bias"].shape == (rows,)
        assert all(np.array_equal(safe[key], as_published[key].numpy()) for key in safe)
    sparse = random_models.reference("bge-m3", folders["bge-m3"], ids_of(folders["bge-m3"]))["sparse"]
    assert 0 < (sparse > 0).sum() < len(sparse)


@pytest.mark.parametrize("family", tiny_tokenizers.FAMILIES)
def test_each_word_is_one_token_in_every_family(family: str) -> None:
    made = tiny_tokenizers.make(family)
    for text in (" ".join(tiny_tokenizers.WORDS), tiny_tokenizers.WORDS[0]):
        words = text.split()
        assert len(made.encode(text, add_special_tokens=False).ids) == len(words), made.encode(text).tokens
    assert set(made.encode(" ".join(words)).tokens) >= {tiny_tokenizers.FAMILIES[family].single.split()[-1]}
