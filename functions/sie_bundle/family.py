"""Encoder families as data: where each weight is stored, and the sizes a checkpoint's ``config.json`` gives.

Owns the names and the reading of ``config.json``. Computes nothing: ``packed_encoder`` is the one program that runs
every family. A new family is a record here, plus a field for what it does differently.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sie_sdk.errors import ModelLoadFailedError


class Family(msgspec.Struct, frozen=True):
    """How one encoder family stores its weights. Names are tensor names without their ``.weight`` or ``.bias``.

    Post-norm, absolute positions from 0, biases everywhere and one token type: what BERT does.
    """

    prefixes: tuple[str, ...]
    """What may stand before every name: checkpoints with a head on top store the encoder under a prefix."""
    words: str
    positions: str
    token_types: str
    embedding_norm: str
    layer: str
    """What stands before the names below; ``{}`` is the number of the layer."""
    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    up: str
    down: str
    output_norm: str


FAMILIES = {
    "bert": Family(
        prefixes=("", "bert.", "model."),
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        token_types="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        layer="encoder.layer.{}.",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attention_output="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        output_norm="output.LayerNorm",
    ),
}


class Config(msgspec.Struct, frozen=True):
    """What is read of ``config.json``, under its own names (Hugging Face's). Anything else there is ignored."""

    model_type: str
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float


class Architecture(msgspec.Struct, frozen=True):
    """One encoder, completely described: its family and its sizes."""

    family: Family
    config: Config


def architecture(family: str, folder: Path) -> Architecture:
    """Describe the encoder of a model's folder.

    Raises:
        ModelLoadFailedError: the family is unknown, or ``config.json`` is unreadable or of another family.
    """
    if family not in FAMILIES:
        raise ModelLoadFailedError(f"There is no family {family!r}.", hint=f"Families: {', '.join(FAMILIES)}.")
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=Config)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadFailedError(f"{folder / 'config.json'} cannot be used: {error}.") from error
    if config.model_type != family:
        raise ModelLoadFailedError(f"The spec says family {family!r}, config.json says {config.model_type!r}.")
    return Architecture(family=FAMILIES[family], config=config)
