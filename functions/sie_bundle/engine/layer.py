"""One layer of an encoder, and a pass through all of them: which product, norm and sum follows which.

Owns the steps around attention, whatever the family, and the passes of a CPU and of a GPU, each compiled as one call
with its attention (``compiled``); with any other attention the same steps are called one by one. Where weights come
from is ``models.packed_encoder``'s.
"""

# No annotations from the future: ``compiled``.
import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine import cpu_attention
from sie_bundle.engine.compiled import compiled
from sie_bundle.engine.cpu_attention import View, attended
from sie_bundle.engine.linear import Product, activated, multiplied
from sie_bundle.engine.positions import Rotary, rotated
from sie_bundle.engine.varlen_attention import VarlenBatch, attend_varlen


class Norm(NamedTuple):
    """Normalisation over the last dimension: by mean and variance, or with ``rms`` by the root mean square alone."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    rms: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """See `normed`."""
        return normed(x, self)


class Attention(NamedTuple):
    """Self-attention of one layer."""

    heads: int
    key_heads: int
    """Of keys and values."""
    qkv: Product
    q_norm: Norm | None
    k_norm: Norm | None
    output: Product
    rope: int
    """Which of the batch's rotations; -1: positions enter another way."""
    mask: int
    """Which of the batch's."""


class FeedForward(NamedTuple):
    """The two linear layers after attention; ``gate``: what the first one's output is multiplied with, if anything."""

    up: Product
    gate: Product | None
    down: Product


class Layer(NamedTuple):
    """One transformer layer. Without ``attention_norm`` the input is taken as it is (ModernBERT's first)."""

    attention: Attention
    attention_norm: Norm | None
    between_norm: Norm | None
    """Behind attention and its norm, over what they give and the layer's input."""
    feed_forward: FeedForward
    output_norm: Norm
    pre_norm: bool
    """Norms stand before attention and feed-forward instead of after."""


def normed(x: Tensor, norm: Norm) -> Tensor:
    """``x`` [..., hidden], normalised."""
    if norm.rms:
        return torch.rms_norm(x, norm.weight.size(), norm.weight, norm.eps)
    return torch.layer_norm(x, norm.weight.size(), norm.weight, norm.bias, norm.eps)


def passed(x: Tensor, layers: list[Layer], rotaries: list[Rotary], seen: list[View]) -> Tensor:
    """The states [T, hidden] behind all layers, on a CPU.

    Args:
        x: what the first one takes.
        rotaries: the batch's rotations.
        seen: the batch for each of its masks.
    """
    for layer in layers:
        q, k, v = queried(x, layer, rotaries)
        x = fed(x, attended(q, k, v, seen[layer.attention.mask]), layer)
    return x


def passed_varlen(x: Tensor, layers: list[Layer], rotaries: list[Rotary], seen: list[VarlenBatch]) -> Tensor:
    """The same on a GPU."""
    for layer in layers:
        q, k, v = queried(x, layer, rotaries)
        x = fed(x, attend_varlen(q, k, v, seen[layer.attention.mask]), layer)
    return x


def queried(x: Tensor, layer: Layer, rotaries: list[Rotary]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [T, heads, head_dim], keys and values [T, key heads, head_dim] of the states ``x`` [T, hidden]."""
    of, norm = layer.attention, layer.attention_norm
    if layer.pre_norm and norm is not None:
        x = normed(x, norm)
    together = multiplied(x, of.qkv).view(x.size(0), of.heads + 2 * of.key_heads, -1)
    q, k, v = torch.split(together, [of.heads, of.key_heads, of.key_heads], dim=1)
    q_norm, k_norm = of.q_norm, of.k_norm
    if q_norm is not None and k_norm is not None:
        q, k = normed_heads(q, q_norm), normed_heads(k, k_norm)
    if of.rope >= 0:
        q, k = rotated(q, rotaries[of.rope]), rotated(k, rotaries[of.rope])
    return q, k, v


def normed_heads(x: Tensor, norm: Norm) -> Tensor:
    """[T, heads, head_dim] normed per head, or all heads together where the norm is that wide."""
    wide = x.flatten(1) if norm.weight.size(0) > x.size(2) else x
    return normed(wide.to(norm.weight.dtype), norm).to(x.dtype).view_as(x)


def fed(x: Tensor, attention: Tensor, layer: Layer) -> Tensor:
    """The layer's states [T, hidden] of its input ``x`` and of what attention gave, [T, heads, head_dim]."""
    attention = multiplied(attention.flatten(1), layer.attention.output)
    if layer.pre_norm:
        x = added(attention, x)
        return added(fed_forward(normed(x, layer.output_norm), layer.feed_forward), x)
    norm, between = layer.attention_norm, layer.between_norm
    assert norm is not None
    inner = normed(added(attention, x), norm)
    if between is not None:
        inner = normed(added(inner, x), between)
    return normed(added(fed_forward(inner, layer.feed_forward), inner), layer.output_norm)


def added(to: Tensor, x: Tensor) -> Tensor:
    """The sum in the type of ``x``, which stays; ``to`` does not. A sum of two types takes twice as long."""
    return to.to(x.dtype).add_(x)


def fed_forward(x: Tensor, of: FeedForward) -> Tensor:
    """``x`` through both linear layers."""
    inner, gate = multiplied(x, of.up), of.gate
    if gate is not None:
        inner = inner.mul_(multiplied(x, gate))
    return multiplied(inner, of.down)


_STEPS = (queried, fed, fed_forward, added, normed, normed_heads, rotated, multiplied, activated)


@functools.cache
def passed_at_once() -> Callable[[Tensor, list[Layer], list[Rotary], list[View]], Tensor]:
    """`passed`, compiled when a model that our own kernels do not compute first needs it."""
    return compiled(passed, attended, *_STEPS, *cpu_attention.STEPS)


@functools.cache
def passed_varlen_at_once() -> Callable[[Tensor, list[Layer], list[Rotary], list[VarlenBatch]], Tensor]:
    """`passed_varlen`, compiled when a GPU first needs it."""
    return compiled(passed_varlen, attend_varlen, *_STEPS)
