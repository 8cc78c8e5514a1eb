"""Static embeddings (model2vec) as an adapter of sie-knative: a text's vector is the mean of its tokens' vectors.

The folder has tokenizer.json, config.json and model.safetensors with one tensor, ``embeddings`` [vocabulary, dim].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sie_bundle.engine.cost import Fit
from sie_bundle.engine.row import Row
from sie_bundle.models.checkpoint import Checkpoint
from sie_sdk.errors import ModelLoadFailedError


class StaticEmbedding:
    """A `sie_bundle.models.model.Model`: what the engine reads of a model, and one method."""

    labels: tuple[str, ...] = ()
    heads: tuple[str, ...] = ("dense",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        dense = checkpoint.spec.tasks.dense
        self._vectors = checkpoint.tensors["embeddings"].float().numpy()
        if dense is None or dense.dim != self._vectors.shape[1]:
            raise ModelLoadFailedError(f"{checkpoint.spec.id} computes {self._vectors.shape[1]} dense dimensions.")
        self.spec, self.tokenizer = checkpoint.spec, checkpoint.tokenizer
        self.bytes = self._vectors.nbytes
        self.fit = Fit()
        self._normalize = dense.normalize
        self._left_out = np.array(sorted(self.tokenizer.special))

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, npt.NDArray[np.float32]]:
        """One vector for each row that wants "dense", the only head there is."""
        return {head: np.stack([self._mean(rows[i]) for i in texts]) for head, texts in wanted.items()}

    def _mean(self, row: Row) -> npt.NDArray[np.float32]:
        words = row.ids[~np.isin(row.ids, self._left_out)]
        mean: npt.NDArray[np.float32] = self._vectors[words if len(words) else row.ids].mean(axis=0)
        if self._normalize:
            mean /= np.linalg.norm(mean)
        return mean


def load(checkpoint: Checkpoint, device: str, precision: str) -> StaticEmbedding:
    """The entry point, a `model.Load` of the engine. So little to compute stays on the CPU, in float32."""
    return StaticEmbedding(checkpoint)
