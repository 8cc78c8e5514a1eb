"""The shapes and numbers of an encoder's tensors: whether they agree, before anything reads them unasked.

Compiled code (``fused``) reads whatever lies where the first layer's shapes say, and weighs a score that is no number
as nothing. Owns what is refused for that at load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sie_bundle.engine import layer, linear
from sie_bundle.engine.embedding import Embedding
from sie_sdk.errors import ModelLoadFailedError


class Sizes(NamedTuple):
    """What all layers have in common: numbers of a state and of a head, the heads, and how wide their norms are."""

    hidden: int
    head: int
    heads: int
    key_heads: int
    norms: tuple[int, int]
    """Of queries and keys: both of one head, both of all heads, or none."""


def sizes_of(of: layer.Layer) -> Sizes:
    attention = of.attention
    (outward, hidden), heads, key_heads = _shape(attention.qkv), attention.heads, attention.key_heads
    head = outward // (heads + 2 * key_heads)
    found = _norms(attention)
    norms = found if found in ((0, 0), (head, head)) else (heads * head, key_heads * head)
    return Sizes(hidden, head, heads, key_heads, norms)


def _norms(of: layer.Attention) -> tuple[int, int]:
    q, k = (0 if norm is None else len(norm.weight) for norm in (of.q_norm, of.k_norm))
    return q, k


def checked(
    embedding: Embedding, layers: Iterable[layer.Layer], final_norm: layer.Norm | None
) -> Iterator[layer.Layer]:
    """The layers, each once all its shapes are as those of the first one say: compiled code reads whatever lies there.

    Raises:
        ModelLoadFailedError: some contradict others, or a weight is no number or infinite: of a query or key that is
            none, compiled code may weigh nothing.
    """
    sizes: Sizes | None = None
    for number, each in enumerate(layers):
        if sizes is None:
            sizes = sizes_of(each)
            _check_ends(embedding, final_norm, sizes.hidden)
        _compare(f"of layer {number}", _expected(each, sizes))
        if not all(map(_is_finite, _tensors(each))):
            _refuse_numbers(number, each)
        yield each


def _check_ends(embedding: Embedding, final_norm: layer.Norm | None, hidden: int) -> None:
    if not embedding.projection:
        tables = [table for table in (embedding.words, embedding.positions, embedding.types) if table is not None]
        around = [table.shape[1] for table in tables] + [len(vector) for vector in _vectors(embedding.norm)]
        _compare("before the first layer", [(around, [hidden] * len(around))])
    _compare("behind the last layer", [(len(vector), hidden) for vector in _vectors(final_norm)])


def _expected(of: layer.Layer, sizes: Sizes) -> list[tuple[object, object]]:
    """Pairs of what a layer has and what it should have."""
    attention, forward = of.attention, of.feed_forward
    inner, hidden = _shape(forward.up)[0], sizes.hidden
    queries, keys = sizes.heads * sizes.head, sizes.key_heads * sizes.head
    expected: list[tuple[object, object]] = [
        (_shape(attention.qkv), (queries + 2 * keys, hidden)),
        (_shape(attention.output), (hidden, queries)),
        (_shape(forward.up), (inner, hidden)),
        (_shape(forward.gate) if forward.gate else (inner, hidden), (inner, hidden)),
        (_shape(forward.down), (hidden, inner)),
        ((attention.heads, attention.key_heads), (sizes.heads, sizes.key_heads)),
        # What the first layer's are is asked of it alone, and heads are gone through by that in all layers.
        (_norms(attention), sizes.norms),
        (attention.heads % attention.key_heads, 0),
    ]
    products = [attention.qkv, attention.output, forward.up, forward.gate or forward.up, forward.down]
    expected += [(len(each.bias), _shape(each)[0]) for each in products if each.bias is not None]
    for norm, own in zip((attention.q_norm, attention.k_norm), sizes.norms, strict=True):
        expected += [(len(vector), own) for vector in _vectors(norm)]
    for norm in (of.attention_norm, of.between_norm, of.output_norm):
        expected += [(len(vector), hidden) for vector in _vectors(norm)]
    return expected


def _refuse_numbers(number: int, of: layer.Layer) -> None:
    assert of.feed_forward.up.weight is not None
    if of.feed_forward.up.weight.dtype is torch.float16:  # whose largest number is 65,504
        raise ModelLoadFailedError(
            f"Tensors of layer {number} have numbers that are not finite in float16.",
            hint="Where those of the checkpoint are, put precision: float32 into its spec.",
        )
    raise ModelLoadFailedError(f"Tensors of layer {number} have numbers that are not finite.", reason="corrupt")


def _tensors(of: layer.Layer) -> Iterator[Tensor | None]:
    attention, forward = of.attention, of.feed_forward
    for product in (attention.qkv, attention.output, forward.up, forward.gate, forward.down):
        yield from (product.weight, product.bias) if product else ()
    for norm in (attention.q_norm, attention.k_norm, of.attention_norm, of.between_norm, of.output_norm):
        yield from _vectors(norm)


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or all(math.isfinite(end) for end in tensor.aminmax())


def _compare(which: str, expected: Sequence[tuple[object, object]]) -> None:
    for found, wanted in expected:
        if found != wanted:
            raise ModelLoadFailedError(
                f"Tensors {which} contradict each other: {found} should be {wanted}.", reason="corrupt"
            )


def _shape(of: linear.Product) -> tuple[int, ...]:
    assert of.weight is not None
    return tuple(of.weight.shape)


def _vectors(norm: layer.Norm | None) -> list[Tensor]:
    return [vector for vector in (norm.weight, norm.bias) if vector is not None] if norm else []
