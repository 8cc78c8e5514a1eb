"""BERT in plain numpy, float64, one text at a time: the packed encoder's reference. Shares no code with it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Array = npt.NDArray[np.float64]
_erf = np.vectorize(math.erf)


class Bert:
    """A checkpoint's folder as a function from token ids to states."""

    def __init__(self, folder: Path) -> None:
        self.tensors = {
            name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()
        }
        self.config = json.loads((folder / "config.json").read_text())

    def states(self, ids: npt.NDArray[np.int64]) -> Array:
        """[length] to [length, hidden]."""
        words, positions, types = (
            self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        x = self._norm("embeddings.LayerNorm", words[ids] + positions[: len(ids)] + types[0])
        for i in range(self.config["num_hidden_layers"]):
            x = self._layer(f"encoder.layer.{i}", x)
        return x

    def _layer(self, layer: str, x: Array) -> Array:
        heads = self.config["num_attention_heads"]
        q, k, v = (
            self._dense(f"{layer}.attention.self.{name}", x).reshape(len(x), heads, -1).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = (weights / weights.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(x), -1)
        x = self._norm(
            f"{layer}.attention.output.LayerNorm", x + self._dense(f"{layer}.attention.output.dense", attended)
        )
        up = self._dense(f"{layer}.intermediate.dense", x)
        gelu = up * (1 + _erf(up / math.sqrt(2))) / 2
        return self._norm(f"{layer}.output.LayerNorm", x + self._dense(f"{layer}.output.dense", gelu))

    def _dense(self, name: str, x: Array) -> Array:
        y: Array = x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]
        return y

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        y: Array = scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]
        return y
