"""Every ready entry of the packaged catalogue with dense vectors, computed on a small model with random weights.

Its spec as it is, but for the sources and, without a projection, the number of dimensions. transformers gives the
states; pooling, the layers behind it and the last step are written out here. So each field that says how states become
a vector has to be read. What a family computes in general is ``test_families``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import load
from sie_bundle.models.tokenization import Tokenizer, end_token
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense
from tests.golden import random_models
from tests.golden.random_kinds import KINDS

Array = npt.NDArray[np.float32]
ELSEWHERE = {"jina_bert", "jina_bert_qk"}
"""Families that transformers has no code of: compared in a test of their own."""
READY = [
    spec
    for spec in catalog.load().values()
    if spec.status == "ready" and spec.tasks.dense and spec.family not in ELSEWHERE
]
KIND_OF = {
    "bert": "bert",
    "mpnet": "mpnet",
    "roberta": "roberta",
    "xlm-roberta": "bge-m3",
    "modernbert": "modernbert",
    "nomic_bert": "nomic-bert",
    "new": "gte-ntk",
    "gte": "gte-own-type",
    "qwen2": "qwen2-bidirectional",
    "qwen3": "qwen3",
    "mistral": "mistral",
    "llama_bidirec": "llama-bidirectional",
    "gemma3_text": "embedding-gemma",
}
"""By family: the kind that stands for it. A new family of the catalogue needs a row."""
TEXTS = ("hello lighthouse", "ship", "hello world, hello ship")
HIDDEN, CLOSE = 32, 2e-5


def pooled(states: Array, pooling: str) -> Array:
    match pooling:
        case "cls":
            return np.asarray(states[0])
        case "last":
            return np.asarray(states[-1])
        case "mean":
            return np.asarray(states.mean(axis=0))
    raise AssertionError(pooling)


def write_projection(dense: Dense, files: tuple[str, ...], folder: Path) -> list[tuple[Array, Array]]:
    """Random layers where the spec looks for them, the last as wide as it says; in order."""
    layers, width = [], HIDDEN
    names = dense.projection.split()
    for i, name in enumerate(names):
        wide = dense.dim if i == len(names) - 1 else 48
        torch.manual_seed(i)
        weight, bias = torch.randn(wide, width) / width**0.5, torch.randn(wide)
        (file,) = [file for file in files if name.startswith(f"{Path(file).parent}.")]
        (folder / file).parent.mkdir()
        layer = name.removeprefix(f"{Path(file).parent}.")
        save_file({f"{layer}.weight": weight, f"{layer}.bias": bias}, folder / file)
        layers.append((weight.numpy(), bias.numpy()))
        width = wide
    return layers


@pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.id) for spec in READY])
def test_a_ready_entry_makes_of_the_states_what_its_spec_says(spec: ModelSpec, tmp_path: Path) -> None:
    dense, name = spec.tasks.dense, KIND_OF[spec.family]
    assert dense and KINDS[name].config["model_type"] == spec.family
    folder = random_models.make(name, tmp_path)
    layers = write_projection(dense, spec.files, folder) if dense.projection else []
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if dense.end_token and tokenizer.token_to_id(dense.end_token) is None:
        dense = msgspec.structs.replace(dense, end_token=tokenizer.encode("a").tokens[-1])
    if not layers:
        dense = msgspec.structs.replace(dense, dim=HIDDEN, dims=())
    tasks: dict[str, Any] = {"dense": dense}
    if spec.tasks.multivector:
        tasks["multivector"] = msgspec.structs.replace(spec.tasks.multivector, dim=HIDDEN)
    small = msgspec.structs.replace(
        spec,
        tasks=msgspec.structs.replace(spec.tasks, **tasks),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=min(spec.max_sequence_length, 40),
    )
    opened = Tokenizer.load(folder, end_token(small))
    model = load(Checkpoint(small, folder, opened), "cpu", "float32")
    rows = opened.rows(TEXTS, 40)
    vectors = model.forward(rows, {"dense": range(len(rows))})["dense"]
    for row, vector in zip(rows, vectors, strict=True):
        wanted = pooled(random_models.reference(name, folder, row.ids.tolist())["states"], dense.pooling)
        for weight, bias in layers:
            wanted = wanted @ weight.T + bias
        if dense.normalize:
            wanted = wanted / np.linalg.norm(wanted)
        assert np.shape(vector) == wanted.shape
        assert np.abs(np.asarray(vector) - wanted).max() < CLOSE * max(1.0, float(np.abs(wanted).max()))
