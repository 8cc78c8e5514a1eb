"""The packed encoder: every family of ``family`` as one short program over a batch without padding.

Owns the layout of the weights (query, key and value fused, token types folded into the positions) and the order of the
steps. Attention, linear layers and pooling have modules of their own. Imports torch only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from sie_bundle.attention import attend
from sie_bundle.family import Architecture
from sie_bundle.linear import Activation, Linear, linear
from sie_bundle.packing import Packed
from sie_sdk.errors import ModelLoadFailedError

# The names ``config.json`` uses; "gelu" is the exact one, by erf.
_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "relu": "relu"}


class Norm(NamedTuple):
    """Layer normalisation over the hidden dimension."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Layer(NamedTuple):
    """One transformer layer."""

    heads: int
    qkv: Linear
    attention_output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    output_norm: Norm

    def __call__(self, x: Tensor, packed: Packed) -> Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).unbind(1)
        attended = attend(q, k, v, packed.groups).flatten(1)
        x = self.attention_norm(x + self.attention_output(attended))
        return self.output_norm(x + self.down(self.up(x)))


class PackedEncoder:
    """An encoder with its weights. ``bytes``: what they take in memory."""

    def __init__(self, architecture: Architecture, tensors: Mapping[str, Tensor]) -> None:
        """Take the weights out of ``tensors``, a checkpoint by tensor name, already on the device they shall run on.

        Raises:
            ModelLoadFailedError: a tensor is missing or has the wrong shape, or the activation is unknown.
        """
        family, config = architecture.family, architecture.config
        if config.hidden_act not in _ACTIVATIONS:
            raise ModelLoadFailedError(f"The activation {config.hidden_act!r} is not supported.")
        weights = _Weights(tensors, family.prefixes, family.words)
        self._words = weights[f"{family.words}.weight"]
        # Every token of a single text has type 0, so its embedding is one more constant per position.
        self._positions = weights[f"{family.positions}.weight"] + weights[f"{family.token_types}.weight"][0]
        self._norm = weights.norm(family.embedding_norm, config.layer_norm_eps)
        self._layers = [_layer(architecture, weights, i) for i in range(config.num_hidden_layers)]
        self.bytes = weights.bytes
        self.device = self._words.device

    def __call__(self, packed: Packed) -> Tensor:
        """The states of the last layer: [T, hidden], in the order of ``packed``."""
        x = self._norm(embedding(packed.ids, self._words) + embedding(packed.positions, self._positions))
        for layer in self._layers:
            x = layer(x, packed)
        return x


def _layer(architecture: Architecture, weights: _Weights, i: int) -> Layer:
    family, config = architecture.family, architecture.config
    prefix = family.layer.format(i)

    def dense(*names: str, activation: Activation = "none") -> Linear:
        """One linear layer from the named ones, side by side."""
        return linear(
            torch.cat([weights[f"{prefix}{name}.weight"] for name in names]),
            torch.cat([weights[f"{prefix}{name}.bias"] for name in names]),
            activation,
        )

    return Layer(
        heads=config.num_attention_heads,
        qkv=dense(family.query, family.key, family.value),
        attention_output=dense(family.attention_output),
        attention_norm=weights.norm(prefix + family.attention_norm, config.layer_norm_eps),
        up=dense(family.up, activation=_ACTIVATIONS[config.hidden_act]),
        down=dense(family.down),
        output_norm=weights.norm(prefix + family.output_norm, config.layer_norm_eps),
    )


class _Weights:
    """A checkpoint's tensors by the family's names, whatever prefix they are stored under; counts what is taken."""

    def __init__(self, tensors: Mapping[str, Tensor], prefixes: tuple[str, ...], probe: str) -> None:
        self._tensors = tensors
        self._prefix = next((prefix for prefix in prefixes if f"{prefix}{probe}.weight" in tensors), "")
        self.bytes = 0

    def __getitem__(self, name: str) -> Tensor:
        try:
            tensor = self._tensors[self._prefix + name].float()
        except KeyError:
            raise ModelLoadFailedError(f"The checkpoint has no tensor {self._prefix + name}.") from None
        self.bytes += tensor.nbytes
        return tensor

    def norm(self, name: str, eps: float) -> Norm:
        return Norm(self[f"{name}.weight"], self[f"{name}.bias"], eps)
