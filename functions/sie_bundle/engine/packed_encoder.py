"""The packed encoder: every family of ``family`` as one short program over a batch without padding.

Owns the layout of the weights (query, key and value fused, the scale of attention folded in) and the order of the
steps. Attention, linear layers and heads have modules of their own. Imports torch only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from sie_bundle.engine.attention import LOG2_E, Attend, kernel
from sie_bundle.engine.family import Architecture
from sie_bundle.engine.finite import Finite
from sie_bundle.engine.linear import Activation, Linear, activation
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.parameters import Norm, Parameters
from sie_bundle.engine.positions import RelativeBias, Rotation, Turn, slopes
from sie_bundle.engine.rope import Rope
from sie_bundle.engine.sight import Sight, Slopes
from sie_bundle.engine.tiles import rounded


class Batch(NamedTuple):
    """What all layers need of a batch; made once."""

    packed: Packed
    attend: Attend
    turns: dict[Rope, Turn]
    """By rotation."""
    bias: Tensor | Slopes | None


class Attention(NamedTuple):
    """Self-attention of one layer. ``heads``: of queries, and of keys and values."""

    heads: tuple[int, int]
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    output: Linear
    rope: Rope | None
    """The rotation; None: positions enter another way."""
    sight: Sight

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        queries, keys = self.heads
        q, k, v = torch.split(self.qkv(x).view(len(x), queries + 2 * keys, -1), [queries, keys, keys], dim=1)
        if self.q_norm and self.k_norm:
            q, k = _normed(q, self.q_norm, x.dtype), _normed(k, self.k_norm, x.dtype)
        if self.rope is not None:
            turn = batch.turns[self.rope]
            q, k = turn(q), turn(k)
        sight = self.sight if batch.bias is None else self.sight._replace(bias=batch.bias)
        return self.output(batch.attend(q, k, v, batch.packed, sight).flatten(1))


class FeedForward(NamedTuple):
    """The two linear layers after attention; ``gate``: what the first one's output is multiplied with, if anything."""

    up: Linear
    gate: Linear | None
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        return self.down(inner if self.gate is None else inner.mul_(self.gate(x)))


class Layer(NamedTuple):
    """One transformer layer. Without ``attention_norm`` the input is taken as it is (ModernBERT's first)."""

    attention: Attention
    attention_norm: Norm | None
    between_norm: Norm | None
    """Behind attention and its norm, over what they give and the layer's input."""
    feed_forward: FeedForward
    output_norm: Norm


class PackedEncoder:
    """An encoder with its parameters."""

    def __init__(self, architecture: Architecture, parameters: Parameters) -> None:
        """Take what the family's record names.

        Raises:
            ModelLoadFailedError: a tensor is missing, or the activation is unknown.
        """
        family, config = architecture.family, architecture.config
        prefix = parameters.prefix
        self.device = parameters.device
        self._family = family
        self._stream = parameters.stream
        self._words = parameters.table(f"{prefix}{family.words}.weight")
        self._positions = parameters.table(f"{prefix}{family.positions}.weight") if family.positions else None
        self._types = parameters.table(f"{prefix}{family.token_types}.weight") if family.token_types else None
        self._norm = parameters.norm(prefix + family.embedding_norm) if family.embedding_norm else None
        projection = prefix + family.embedding_projection
        projected = family.embedding_projection and f"{projection}.weight" in parameters
        self._projection = parameters.linear([projection], dtype=parameters.stream) if projected else None
        shared = "{}" not in family.layer
        layers = [_layer(architecture, parameters, i) for i in range(1 if shared else config.num_hidden_layers)]
        self._layers = layers * config.num_hidden_layers if shared else layers
        self._final_norm = parameters.norm(prefix + family.final_norm) if family.final_norm else None
        self._rotation = Rotation(config.head_size, parameters.device, parameters.computed)
        self._ropes = {layer.attention.rope for layer in self._layers if layer.attention.rope is not None}
        bias = f"{prefix}{family.relative_bias}.weight"
        self._bias = RelativeBias(parameters.take(bias, parameters.computed)) if family.relative_bias else None
        self._slopes = slopes(config.num_attention_heads, parameters.device) if family.alibi else None
        self._compiled = self.device.type == "cpu" and parameters.computed is parameters.dtype
        """Whether products are made by oneDNN, for each size anew."""
        self._finite = Finite(self._states, kernel(parameters.device))

    def __call__(self, packed: Packed) -> Tensor:
        """The states of the last layer: [T, hidden], in the order of ``packed``."""
        return self._finite(packed)

    def _states(self, packed: Packed, attend: Attend) -> Tensor:
        tokens = len(packed.ids)
        if self._compiled:
            packed = _rounded(packed)
        x = self._embed(packed)
        batch = Batch(
            packed=packed,
            attend=attend,
            turns={rope: self._rotation(packed, rope) for rope in self._ropes},
            bias=self._bias(rounded(packed.longest, 64)) if self._bias else self._slopes,
        )
        for attention, attention_norm, between_norm, feed_forward, output_norm in self._layers:
            if self._family.pre_norm:
                x = x + attention(attention_norm(x) if attention_norm else x, batch)
                x = x + feed_forward(output_norm(x))
            else:
                assert attention_norm is not None
                attended = attention_norm(x + attention(x, batch))
                x = between_norm(x + attended) if between_norm else attended
                x = output_norm(x + feed_forward(x))
        x = x[:tokens]
        return self._final_norm(x) if self._final_norm else x

    def _embed(self, packed: Packed) -> Tensor:
        x = embedding(packed.ids, self._words).to(self._stream)
        if self._positions is not None:
            x += embedding(packed.positions + self._family.first_position, self._positions)
        if self._types is not None:
            x += self._types[0] if packed.types is None else embedding(packed.types, self._types)
        x = self._norm(x) if self._norm else x
        return self._projection(x) if self._projection else x


def _normed(x: Tensor, norm: Norm, dtype: torch.dtype) -> Tensor:
    """[T, heads, head_dim] normed per head, or all heads together where the norm is that wide."""
    wide = x.flatten(1) if len(norm.weight) > x.shape[2] else x
    return norm(wide.to(dtype)).to(x.dtype).view_as(x)


def _rounded(packed: Packed) -> Packed:
    """The batch with some more tokens behind it, which no text sees, so that few numbers of tokens occur.

    oneDNN compiles its code anew for each: half a millisecond and as many megabytes for every layer of a new size.
    """
    extra = rounded(len(packed.ids), 8) - len(packed.ids)
    return packed._replace(
        ids=pad(packed.ids, (0, extra)),
        positions=pad(packed.positions, (0, extra)),
        types=None if packed.types is None else pad(packed.types, (0, extra)),
    )


def _layer(architecture: Architecture, parameters: Parameters, i: int) -> Layer:
    family, config = architecture.family, architecture.config
    prefix = parameters.prefix + family.layer.format(i)
    # Where norms stand between the weights and the scores, the scale goes into the norm.
    scale = LOG2_E / math.sqrt(config.head_size)
    q_norm = parameters.norm(prefix + family.q_norm) if family.q_norm else None
    folded = None if q_norm else (config.num_attention_heads * config.head_size, scale)
    first = f"{prefix}{family.attention_norm}"
    return Layer(
        attention=Attention(
            heads=(config.num_attention_heads, config.key_value_heads),
            qkv=parameters.linear([prefix + name for name in family.qkv], scale=folded),
            q_norm=q_norm.scaled(scale) if q_norm else None,
            k_norm=parameters.norm(prefix + family.k_norm) if family.k_norm else None,
            output=parameters.linear([prefix + family.attention_output]),
            rope=config.ropes[i] if family.rotates else None,
            sight=Sight(causal=family.causal, window=config.windows[i]),
        ),
        attention_norm=parameters.norm(first) if f"{first}.weight" in parameters else None,
        between_norm=parameters.norm(prefix + family.between_norm) if family.between_norm else None,
        feed_forward=_feed_forward(architecture, parameters, prefix),
        output_norm=parameters.norm(prefix + family.output_norm),
    )


def _feed_forward(architecture: Architecture, parameters: Parameters, prefix: str) -> FeedForward:
    family = architecture.family
    act = activation(architecture.config.hidden_act)
    names = [prefix + name for name in family.up]
    down = parameters.linear([prefix + family.down])
    if family.gate == "none":
        return FeedForward(parameters.linear(names, act), None, down)
    acts: tuple[Activation, Activation] = (act, "none") if family.gate == "first" else ("none", act)
    first, second = parameters.halves(names, acts)
    return FeedForward(first, second, down)
