"""The packed encoder: every family of ``family`` as one short program over a batch without padding.

Owns the layout of the weights (query, key and value fused), which tables an embedding adds up, and what all layers need
of a batch. The steps of a layer are ``engine.layer``'s. Imports torch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sie_bundle.engine import cpu_attention, layer, native
from sie_bundle.engine.attention import kernel, varlen
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.embedding import Embedding
from sie_bundle.engine.finite import finite
from sie_bundle.engine.fused import Fused
from sie_bundle.engine.layer import Attention, FeedForward, Layer
from sie_bundle.engine.linear import Activation, LayOut, linear, plain
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.positions import RelativeBias, RotaryTables, slopes
from sie_bundle.engine.rope import Rope
from sie_bundle.engine.varlen_attention import takes, varlen_batch
from sie_bundle.models.activations import activation
from sie_bundle.models.architecture import Architecture
from sie_bundle.models.parameters import Parameters


class PackedEncoder:
    """An encoder with its parameters."""

    def __init__(
        self, architecture: Architecture, parameters: Parameters, library: native.Library | None = None
    ) -> None:
        """Take what the family's record names.

        Args:
            architecture: the family and its sizes.
            parameters: the checkpoint's.
            library: computes the layers on a CPU; None: torch does.

        Raises:
            ModelLoadFailedError: a tensor is missing, or the activation is unknown.
        """
        family, config = architecture.family, architecture.config
        prefix = parameters.prefix
        self.device = parameters.device
        self._family = family
        self._computed = parameters.computed
        self._embedding = _embedding(architecture, parameters)
        self._ropes: list[Rope] = list(dict.fromkeys(config.ropes)) if family.rotates else []
        self._windows = list(dict.fromkeys(config.windows))
        shared = "{}" not in family.layer
        self._lay_out = plain if library else linear
        count = config.num_hidden_layers
        # One by one: compiled code keeps none of them, and what one took is there for the next.
        layers: Iterable[Layer] = (self._layer(architecture, parameters, i) for i in range(1 if shared else count))
        layers = list(layers) * count if shared else layers
        final = parameters.norm(prefix + family.final_norm) if family.final_norm else None
        self._fused = Fused(library, self._embedding, layers, final, parameters.computed) if library else None
        self._layers = [] if library else list(layers)
        # Read from Python's named tuples once, and not for every pass.
        self._kept = cast("list[Layer]", torch._C.ScriptList(self._layers)) if self._layers else []
        self._final_norm = final
        turning = torch.float32 if self._fused else parameters.computed
        self._rotary = RotaryTables(config.head_size, parameters.device, turning)
        bias = f"{prefix}{family.relative_bias}.weight"
        self._bias = RelativeBias(parameters.take(bias, parameters.stream)) if family.relative_bias else None
        self._slopes = slopes(config.num_attention_heads, parameters.device) if family.alibi else None
        self._made_by_size = self.device.type == "cpu" and parameters.computed is parameters.dtype
        """Whether products are made by oneDNN, for each size anew."""
        self._attend = kernel(parameters.device, parameters.computed)

    def __call__(self, packed: Packed) -> Tensor:
        """The states of the last layer: [T, hidden], in the order of ``packed``."""
        # In compiled code texts share nothing, so one that is not finite spoils none.
        return self._states(packed) if self._fused else finite(self._states, packed)

    def _states(self, packed: Packed) -> Tensor:
        if self._fused:
            tables = [self._rotary.table(rope, packed.longest) for rope in self._ropes]
            return self._fused(packed, tables, self._masks(packed))
        if self.device.type == "cpu":
            packed = _with_room(packed, self._made_by_size)
        x = self._embedding(packed)
        rotaries = [self._rotary(packed, rope) for rope in self._ropes]
        masks = self._masks(packed)
        if self.device.type == "cpu":
            views = [cpu_attention.view(packed, mask, self._computed, len(x)) for mask in masks]
            x = layer.passed_at_once()(x, self._kept, rotaries, views)
        elif self._attend is varlen and all(takes(packed, mask) for mask in masks):
            seen = [varlen_batch(packed, mask) for mask in masks]
            x = layer.passed_varlen_at_once()(x, self._kept, rotaries, seen)
        else:
            for one in self._layers:
                q, k, v = layer.queried(x, one, rotaries)
                x = layer.fed(x, self._attend(q, k, v, packed, masks[one.attention.mask]), one)
        x = x[: packed.tokens.cu_seqlens[-1]]
        return self._final_norm(x) if self._final_norm else x

    def _masks(self, packed: Packed) -> Sequence[AttentionMask]:
        """What tokens see, in layers of each window."""
        bias = self._bias(rounded(packed.longest, 64)) if self._bias else None
        return [AttentionMask(self._family.causal, window, bias, self._slopes) for window in self._windows]

    def _layer(self, architecture: Architecture, parameters: Parameters, i: int) -> Layer:
        family, config = architecture.family, architecture.config
        prefix = parameters.prefix + family.layer.format(i)
        first = f"{prefix}{family.attention_norm}"
        return Layer(
            attention=Attention(
                heads=config.num_attention_heads,
                key_heads=config.key_value_heads,
                qkv=parameters.linear([prefix + name for name in family.qkv], lay_out=self._lay_out),
                q_norm=parameters.norm(prefix + family.q_norm) if family.q_norm else None,
                k_norm=parameters.norm(prefix + family.k_norm) if family.k_norm else None,
                output=parameters.linear([prefix + family.attention_output], lay_out=self._lay_out),
                rope=self._ropes.index(config.ropes[i]) if family.rotates else -1,
                mask=self._windows.index(config.windows[i]),
            ),
            attention_norm=parameters.norm(first) if f"{first}.weight" in parameters else None,
            between_norm=parameters.norm(prefix + family.between_norm) if family.between_norm else None,
            feed_forward=_feed_forward(architecture, parameters, prefix, self._lay_out),
            output_norm=parameters.norm(prefix + family.output_norm),
            pre_norm=family.pre_norm,
        )


def _with_room(packed: Packed, made_by_size: bool) -> Packed:
    """The batch with some more tokens behind it, which no text sees, for `cpu_attention.room`.

    With ``made_by_size`` as many that few numbers of tokens occur: oneDNN compiles its code anew for each, half a
    millisecond and as many megabytes for every layer. Without, not for a short text alone, where they are too many.
    """
    tokens, rows = packed.tokens, cpu_attention.room(packed)
    count = len(tokens.ids)
    if made_by_size:
        rows = rounded(rows, 8)
    elif rows - count > count // 16:
        return packed
    more = (0, rows - count)
    return replace(
        packed,
        tokens=tokens._replace(
            ids=np.pad(tokens.ids, more),
            positions=np.pad(tokens.positions, more),
            types=None if tokens.types is None else np.pad(tokens.types, more),
        ),
    )


def rounded(number: int, step: int) -> int:
    """The next multiple of ``step``, or of a sixteenth of the next power of two where that is more."""
    step = max(step, 1 << max(0, (number - 1).bit_length() - 4))
    return -(-number // step) * step


def _feed_forward(architecture: Architecture, parameters: Parameters, prefix: str, lay_out: LayOut) -> FeedForward:
    family = architecture.family
    act = activation(architecture.config.hidden_act)
    names = [prefix + name for name in family.up]
    down = parameters.linear([prefix + family.down], lay_out=lay_out)
    if family.gate == "none":
        return FeedForward(parameters.linear(names, act, lay_out=lay_out), None, down)
    acts: tuple[Activation, Activation] = (act, "none") if family.gate == "first" else ("none", act)
    first, second = parameters.halves(names, acts, lay_out)
    return FeedForward(first, second, down)


def _embedding(architecture: Architecture, parameters: Parameters) -> Embedding:
    """An encoder's, of a checkpoint's parameters.

    Raises:
        ModelLoadFailedError: a tensor is missing, or has fewer rows than config.json says.
    """
    family, prefix = architecture.family, parameters.prefix
    config = architecture.config
    projection = prefix + family.embedding_projection
    projected = family.embedding_projection and f"{projection}.weight" in parameters
    places, types = f"{prefix}{family.positions}.weight", f"{prefix}{family.token_types}.weight"
    return Embedding(
        words=parameters.table(f"{prefix}{family.words}.weight", config.vocab_size),
        positions=parameters.table(places, config.max_position_embeddings) if family.positions else None,
        types=_two(parameters.table(types)) if family.token_types else None,
        first_position=family.first_position,
        norm=parameters.norm(prefix + family.embedding_norm) if family.embedding_norm else None,
        projection=parameters.linear([projection], dtype=parameters.stream) if projected else None,
        stream=parameters.stream,
    )


def _two(types: Tensor) -> Tensor:
    """One type is that of both texts of a pair, whichever the tokenizer says."""
    return types.expand(2, -1) if len(types) == 1 else types
