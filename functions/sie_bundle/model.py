"""The model contract, in one screen: load, tokenize, forward, and how many bytes it takes.

Importing this module imports torch; whatever needs to be up before that imports it late (see ``residency``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sie_bundle import family
from sie_bundle.packed_encoder import PackedEncoder
from sie_bundle.packing import pack
from sie_bundle.pooling import pool
from sie_bundle.tokenization import Row, Tokenizer
from sie_config.model_spec import Dense, ModelSpec
from sie_sdk.errors import ModelLoadFailedError


class EncoderModel:
    """A model in memory that computes dense vectors. Made by ``load``, which has run a real forward pass."""

    def __init__(self, spec: ModelSpec, dense: Dense, tokenizer: Tokenizer, encoder: PackedEncoder) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.bytes = encoder.bytes
        self._dense = dense
        self._encoder = encoder

    @classmethod
    def load(
        cls, spec: ModelSpec, folder: Path, device: str = "cpu", *, tokenizer: Tokenizer | None = None
    ) -> EncoderModel:
        """Load a model from ``folder`` (config.json, tokenizer.json, model.safetensors) and run it once.

        Args:
            tokenizer: the folder's tokenizer, when it is loaded already.

        Raises:
            ModelLoadFailedError: the files contradict the spec or each other, or the forward pass is not finite.
        """
        if (dense := spec.tasks.dense) is None:
            raise ModelLoadFailedError(f"{spec.id} has no dense task.")
        tokenizer = tokenizer or Tokenizer.load(folder)
        architecture = family.architecture(spec.family, folder)
        _check(spec, dense, architecture.config, tokenizer)
        try:
            encoder = PackedEncoder(architecture, load_file(folder / "model.safetensors", device=device))
        except (OSError, SafetensorError) as error:
            raise ModelLoadFailedError(f"{folder / 'model.safetensors'} cannot be read: {error}.") from error
        model = cls(spec, dense, tokenizer, encoder)
        model._dry_run()
        return model

    def forward(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Rows of token ids (at least one, none empty) to float32 vectors [n, dim]. Blocks; one thread at a time."""
        with torch.inference_mode():
            packed = pack(rows, self._encoder.device)
            states = self._encoder(packed)
            vectors = pool(states, packed, self._dense.pooling, unit_length=self._dense.normalize)
            return vectors.float().cpu().numpy()

    def _dry_run(self) -> None:
        row = self.tokenizer.tokenize(["a"], self.spec.max_sequence_length)
        try:
            vectors = self.forward(row)
        except Exception as error:
            raise ModelLoadFailedError(f"A first forward pass of {self.spec.id} failed: {error}.") from error
        if vectors.shape != (1, self._dense.dim) or not np.isfinite(vectors).all():
            raise ModelLoadFailedError(f"A first forward pass of {self.spec.id} gave no finite vector.")


def _check(spec: ModelSpec, dense: Dense, config: family.Config, tokenizer: Tokenizer) -> None:
    if config.hidden_size != dense.dim:
        raise ModelLoadFailedError(f"{spec.id} computes {config.hidden_size} dimensions, its spec says {dense.dim}.")
    if config.max_position_embeddings < spec.max_sequence_length:
        raise ModelLoadFailedError(
            f"{spec.id} has {config.max_position_embeddings} positions, its spec wants {spec.max_sequence_length}."
        )
    if config.vocab_size < tokenizer.vocabulary:
        raise ModelLoadFailedError(
            f"{spec.id} embeds {config.vocab_size} tokens, its tokenizer makes {tokenizer.vocabulary}."
        )
