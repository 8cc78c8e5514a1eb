"""Heads as their checkpoints have them: decoders of their own, activations that config.json names, two rows of many.

Every head of every family as it usually is: ``test_families``.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sie_bundle.engine.outputs import SparseRow
from sie_bundle.engine.row import Row, row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.heads import entries_on_device, entries_on_host
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.parameters import Parameters
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Multivector, Score, Sparse, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests.bundle import test_families
from tests.bundle.test_families import WAYS, equals_transformers, load, rows_of
from tests.golden import random_models
from tests.golden.random_kinds import KINDS

UNTIED = {"tie_word_embeddings": False}
SPLADES = ["bert-splade", "roberta-splade", "distilbert-splade", "mpnet-splade", "modernbert-splade", "albert-splade"]
HEADS = ["bert", "bert-splade", "bge-m3", "bert-reranker", "bert-ner", "qwen3-reranker", "deberta-v2-nli"]
CAP = "final_logit_softcapping"
DECODERS = {"bert-splade": "cls.predictions.decoder", "modernbert-splade": "decoder"}


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kind of random model with other things in its config.json, by its name."""
    masked = dataclasses.replace(KINDS["mpnet"], architecture="MPNetForMaskedLM")
    monkeypatch.setitem(KINDS, "mpnet-splade", masked)

    def made(kind: str, config: dict[str, object]) -> str:
        name = f"{kind} {config}"
        monkeypatch.setitem(KINDS, name, dataclasses.replace(KINDS[kind], config=KINDS[kind].config | config))
        return name

    return made


def again(model: EncoderModel, folder: Path) -> EncoderModel:
    """The same, of files that have changed."""
    return EncoderModel(Checkpoint(model.spec, folder), precision_wanted="float32")


def sparse(model: EncoderModel, each: Row) -> SparseRow:
    (output,) = model.forward([each], {"sparse": [0]})["sparse"]
    assert isinstance(output, SparseRow)
    return output


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", SPLADES)
def test_words_are_weighed_by_the_decoder_that_the_config_says(
    kind: str, tied: bool, another: Any, tmp_path: Path
) -> None:
    name = another(kind, {"tie_word_embeddings": tied})
    equals_transformers(name, load(name, tmp_path), tmp_path, rows_of(name, tmp_path))


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_that_is_another_although_the_config_says_it_is_tied_is_taken_as_transformers_takes_it(
    kind: str, another: Any, tmp_path: Path
) -> None:
    model, path = load(kind, tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    (words,) = (tensor for name, tensor in tensors.items() if "word_embeddings" in name or "tok_embeddings" in name)
    save_file(tensors | {f"{DECODERS[kind]}.weight": words.flip(0).clone()}, path, metadata={"format": "pt"})
    name = another(kind, {})  # transformers keeps a model by its kind
    equals_transformers(name, again(model, tmp_path), tmp_path, rows_of(kind, tmp_path))


def test_a_decoder_without_a_bias_of_its_own_has_the_one_beside_it_as_releases_before_transformers_5_stored_it(
    another: Any, tmp_path: Path
) -> None:
    model, path = load(another("bert-splade", UNTIED), tmp_path), tmp_path / "model.safetensors"
    tensors, bias = load_file(path), "cls.predictions.decoder.bias"
    (own, *_) = rows_of("bert-splade", tmp_path)
    save_file(tensors | {bias: tensors["cls.predictions.bias"].clone()}, path)
    wanted = sparse(again(model, tmp_path), own)
    save_file({name: tensor for name, tensor in tensors.items() if name != bias}, path)
    assert np.array_equal(sparse(again(model, tmp_path), own).values, wanted.values)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_that_should_be_there_and_is_not_is_named(kind: str, another: Any, tmp_path: Path) -> None:
    model, path = load(another(kind, UNTIED), tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors[f"{DECODERS[kind]}.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelLoadFailedError, match=f"no tensor {DECODERS[kind]}.weight"):
        again(model, tmp_path)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("modernbert-nli", {"classifier_activation": "silu"}),
        ("modernbert-ner", {"classifier_activation": "relu"}),
        ("modernbert-splade", {"classifier_activation": "relu"}),
        ("deberta-v2-nli", {"pooler_hidden_act": "tanh"}),
    ],
    ids=str,
)
def test_a_heads_activation_is_the_one_that_the_config_names(
    kind: str, config: dict[str, object], another: Any, tmp_path: Path
) -> None:
    name = another(kind, config)
    equals_transformers(name, load(name, tmp_path), tmp_path, rows_of(name, tmp_path))


@pytest.mark.parametrize("way", WAYS)
def test_a_classifier_on_a_decoder_reads_the_last_token_that_is_not_the_paddings(way: str, tmp_path: Path) -> None:
    """Which is another than the last one where padding is what ends a text, as many a tokenizer has it."""
    model = load("qwen3-nli", tmp_path, kernels=WAYS[way])
    texts = [[5, 6, 9, 7], [7, 8, 7, 7], [5, 6, 9], [7, 7], [7, 11, 12]]
    equals_transformers("qwen3-nli", model, tmp_path, [row(np.array(ids, dtype=np.int64)) for ids in texts])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_a_vocabulary_that_is_tied_a_judge_takes_two_rows_more(device: str, tmp_path: Path) -> None:
    model = load("qwen3-reranker", tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in stored
    rows = 2 * 32 * 4
    assert model.bytes <= sum(tensor.nbytes for tensor in stored.values()) + rows
    architecture = Checkpoint(model.spec, tmp_path).architecture
    parameters = Parameters(architecture, stored, torch.device(device), torch.float32)
    assert parameters.rows(parameters.vocabulary, [3, 5]).shape == (2, 32) and parameters.bytes == rows
    with pytest.raises(ModelLoadFailedError, match="not of 1001 rows"):
        parameters.rows(parameters.vocabulary, [1000])


def test_a_judge_with_a_vocabulary_of_its_own_takes_that_ones_rows(another: Any, tmp_path: Path) -> None:
    name = another("qwen3-reranker", UNTIED)
    model = load(name, tmp_path)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    equals_transformers(name, model, tmp_path, rows_of(name, tmp_path))
    spec = msgspec.structs.replace(model.spec, tasks=msgspec.structs.replace(model.spec.tasks, score=None))
    assert model.bytes == EncoderModel(Checkpoint(spec, tmp_path), precision_wanted="float32").bytes + 2 * 32 * 4


@pytest.mark.parametrize("said", [{CAP: 5.0}, {}, {CAP: None}], ids=["five", "as usual", "none"])
def test_a_judge_and_words_weights_of_gemma_keep_to_the_cap_of_its_logits(
    said: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = {name: value for name, value in KINDS["gemma2"].config.items() if name != CAP} | said
    kind = dataclasses.replace(KINDS["gemma2"], architecture="Gemma2ForCausalLM", config=config)
    monkeypatch.setitem(KINDS, name := f"gemma2 {said}", kind)
    tasks = Tasks(score=Score(kind="yes_no", yes="a", no="b"), sparse=Sparse(dim=80))
    monkeypatch.setattr(test_families, "tasks_of", lambda kind: tasks)
    model = load(name, tmp_path)
    assert model.heads == ("sparse", "yes_no")
    for own in rows_of(name, tmp_path):
        logits = random_models.reference(name, tmp_path, own.ids.tolist())["logits"]
        yes, no = (logits[-1, model.tokenizer.id(token)] for token in "ab")
        (judged,) = model.forward([own], {"yes_no": [0]})["yes_no"]
        assert np.abs(judged - (yes - no)).max() < 2e-5 * max(1, abs(yes), abs(no))
        weights, row = np.log1p(np.maximum(logits.max(axis=0), 0)), sparse(model, own)
        assert np.array_equal(row.indices, np.flatnonzero(weights))
        assert np.abs(row.values - weights[row.indices]).max() < 2e-5


def test_the_entries_of_sparse_rows_are_the_same_wherever_they_are_found() -> None:
    weights = torch.relu(torch.randn(7, 90) - 1)
    weights[3], weights[5, 2] = 0, torch.nan
    for host, device in zip(entries_on_host(weights), entries_on_device(weights), strict=True):
        assert (host.indices.dtype, host.values.dtype) == (device.indices.dtype, device.values.dtype)
        assert np.array_equal(host.indices, device.indices)
        assert np.array_equal(host.values, device.values, equal_nan=True)


def test_words_weights_of_a_batch_are_those_of_its_texts_alone_and_marks_have_none(tmp_path: Path) -> None:
    model = load("bge-m3", tmp_path)
    special = sorted(model.tokenizer.special)
    random = np.random.default_rng(0)
    rows = [row(random.integers(0, 20, length)) for length in (7, 1, 30, 7, 12, 30)] + [row([special[0]])]
    asked = [4, 0, 6, 2, 5]
    for text, one in zip(asked, model.forward(rows, {"sparse": asked})["sparse"], strict=True):
        alone = sparse(model, rows[text])
        assert isinstance(one, SparseRow) and one.indices.dtype == np.int32 and one.values.dtype == np.float32
        assert np.array_equal(one.indices, alone.indices) and (np.diff(one.indices) > 0).all()
        assert set(one.indices.tolist()) <= set(rows[text].ids.tolist()) - set(special)
        assert np.abs(one.values - alone.values).max(initial=0) < 1e-5


@pytest.mark.parametrize("kind", ["bert-splade", "modernbert-splade"])
@pytest.mark.parametrize("texts", [1, 2, 3])
def test_a_batch_whose_vocabulary_is_too_much_memory_at_once_gives_the_same_in_parts(
    kind: str, texts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = load(kind, tmp_path)
    rows = [row(np.arange(1, length + 1) % 30) for length in (5, 5, 5, 2, 9, 5, 5, 9)]
    whole = model.forward(rows, {"sparse": [7, 0, 3, 5]})["sparse"]
    monkeypatch.setattr("sie_bundle.models.heads.WEIGHTS", texts * int(KINDS[kind].config["vocab_size"]))
    for one, other in zip(model.forward(rows, {"sparse": [7, 0, 3, 5]})["sparse"], whole, strict=True):
        assert isinstance(one, SparseRow) and isinstance(other, SparseRow)
        assert np.array_equal(one.indices, other.indices) and np.allclose(one.values, other.values, atol=1e-6)


@pytest.mark.parametrize("attend", [False, True])
def test_queries_of_a_causal_model_are_not_filled_up_with_what_is_not_seen(tmp_path: Path, attend: bool) -> None:
    random_models.make("qwen3", tmp_path)
    late = Multivector(dim=48, projection="", query_length=8, mask="a", attend_to_mask=attend)
    spec = ModelSpec(
        id="random-init/late", family="qwen3", tasks=Tasks(multivector=late), sources=(), revision="random"
    )
    spec = msgspec.structs.replace(spec, max_sequence_length=32)
    if attend:
        Checkpoint(spec, tmp_path)
    else:
        with pytest.raises(ModelLoadFailedError, match="without being seen"):
            Checkpoint(spec, tmp_path)


@pytest.mark.parametrize("kind", HEADS)
def test_no_head_holds_the_files_open_that_it_came_from(kind: str, tmp_path: Path) -> None:
    model = load(kind, tmp_path)
    checkpoint = Checkpoint(model.spec, tmp_path)
    files = weakref.ref(checkpoint.tensors)
    again = EncoderModel(checkpoint, precision_wanted="float32")
    del checkpoint
    gc.collect()
    assert files() is None and again.heads == model.heads
