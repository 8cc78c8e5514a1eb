"""A tiny BERT with random weights, for tests that need a real model in milliseconds and none in particular."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

from sie_bundle.engine.native import KEPT
from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.row import Row
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Tasks

if TYPE_CHECKING:
    from sie_bundle.models.model import EncoderModel, Model

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 32, 2, 4, 64, 64
WORDS = ("hello", "world", "ship", "lighthouse", "poison")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def make(folder: Path, *, nan_token: str | None = None, seed: int = 0) -> Path:
    """Write config.json, tokenizer.json and model.safetensors into ``folder`` (made if it is missing); returns it.

    Texts of lower-case ASCII letters are tokenized: the ``WORDS`` as one token each, all else by letters.
    A text with the token ``nan_token``, one of the words, has a vector that is not finite.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(_config(len(vocabulary))))
    tensors = _tensors(len(vocabulary), np.random.default_rng(seed))
    if nan_token is not None:
        tensors["embeddings.word_embeddings.weight"][vocabulary[nan_token]] = np.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(spec: ModelSpec, folder: Path, precision: str = "float32", kernels: Path | None = KEPT) -> EncoderModel:
    """The model in memory, computing with ``precision``."""
    from sie_bundle.models.checkpoint import Checkpoint
    from sie_bundle.models.model import EncoderModel

    model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision, kernels=kernels)
    model.try_out()
    return model


def vectors(model: Model, rows: Sequence[Row]) -> Floats:
    """The dense vectors [n, dim] of rows."""
    dense = model.forward(rows, {"dense": range(len(rows))})["dense"]
    assert isinstance(dense, np.ndarray)
    return dense


def spec(folder: Path, model: str = "test/tiny") -> ModelSpec:
    """The spec of a model that ``make`` wrote into ``folder``."""
    return ModelSpec(
        id=model,
        family="bert",
        tasks=Tasks(dense=Dense(dim=HIDDEN)),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=32,
        revision="tiny",
    )


def _vocabulary() -> dict[str, int]:
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    return {token: i for i, token in enumerate([*_SPECIAL, *WORDS, *letters])}


def _tokenizer(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    # As many published files have it: baked in, and to be ignored.
    made.enable_padding(length=16, pad_id=vocabulary["[PAD]"], pad_token="[PAD]")
    made.enable_truncation(max_length=8)
    return made


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "model_type": "bert",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "vocab_size": vocabulary,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }


def _tensors(vocabulary: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}

    def table(name: str, rows: int) -> None:
        tensors[f"embeddings.{name}.weight"] = random.normal(size=(rows, HIDDEN)).astype(np.float32)

    def dense(name: str, outputs: int, inputs: int) -> None:
        tensors[f"{name}.weight"] = random.normal(scale=inputs**-0.5, size=(outputs, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = random.normal(scale=0.1, size=outputs).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = random.normal(loc=1.0, scale=0.1, size=HIDDEN).astype(np.float32)
        tensors[f"{name}.bias"] = random.normal(scale=0.1, size=HIDDEN).astype(np.float32)

    table("word_embeddings", vocabulary)
    table("position_embeddings", POSITIONS)
    table("token_type_embeddings", 2)
    norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN)
        dense(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", INTERMEDIATE, HIDDEN)
        dense(f"{layer}.output.dense", HIDDEN, INTERMEDIATE)
        norm(f"{layer}.output.LayerNorm")
    return tensors
