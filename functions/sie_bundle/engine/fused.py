"""A pass on a CPU as one call of compiled code: each product together with what is done to its results.

Owns the layout of the weights that ``kernels/`` reads, its structures, and what it is told of a batch. Which steps
there are is ``embedding``'s and ``layer``'s: a `Layer` with plain weights goes in. Whether their shapes agree is
``shapes``', finding the library ``native``'s.

What it is faster by (``bench/history.md``): results of products are activated, added and rounded while they are in
registers, rows between two attentions go through all steps while they are in the cache, and products of AMX go on
beside that. torch has no step that does several of these at once. And no step asks for Python's lock, for which a
pass on one of two cores waited as long as it computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sie_bundle.engine import buffers, layer, linear, native
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.embedding import Embedding
from sie_bundle.engine.native import Library, address
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.positions import Rotary
from sie_bundle.engine.precision import FLOATS
from sie_bundle.engine.shapes import checked, sizes_of

PANEL = 32
"""Columns of a weight that lie together; every dimension is made whole such."""

ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu", "silu", "tanh")
"""In the library's order."""


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class _Product(ctypes.Structure):
    _fields_ = (*_fields(c_void_p, "weight bias"), *_fields(c_int32, "inward outward activation halved"))


class _Norm(ctypes.Structure):
    _fields_ = (*_fields(c_void_p, "weight bias"), ("eps", c_float), *_fields(c_int32, "rms size exists"))


class _Layer(ctypes.Structure):
    _fields_ = (
        *_fields(_Product, "qkv output up gate down"),
        *_fields(_Norm, "q_norm k_norm attention_norm between_norm output_norm"),
        *_fields(c_int32, "rotary mask"),
    )


class _Table(ctypes.Structure):
    _fields_ = (("rows", c_void_p), ("stored", c_int32))


class _Embedding(ctypes.Structure):
    _fields_ = (
        *_fields(_Table, "words positions types"),
        ("norm", _Norm),
        *_fields(c_int32, "size first_position"),
    )


class _Rotary(ctypes.Structure):
    _fields_ = tuple(_fields(c_void_p, "cosines sines"))


class _Mask(ctypes.Structure):
    _fields_ = (*_fields(c_int32, "causal window"), ("bias", c_void_p), ("side", c_int64), ("slopes", c_void_p))


class _Pass(ctypes.Structure):
    _fields_ = (
        *_fields(
            c_void_p, "states room embedding final_norm ids positions types layers rotaries masks cu_seqlens seen"
        ),
        *_fields(c_int32, "count pre_norm tokens texts longest hidden heads key_heads size threads"),
    )


def fits(head: int, key_heads: int) -> bool:
    """Whether heads of that size are for compiled code: it reads a head's queries in whole panels, and for very small
    heads beyond their row, where another text's may be."""
    return -head % PANEL <= 2 * key_heads * head


class Fused:
    """All of one encoder. Several threads may call it at once.

    Args:
        library: ``native.library``'s, for ``dtype``.
        embedding: computed here as well, unless there is a projection in it.
        layers: with plain weights [out, in], one by one: none is kept, or asked for before the one before is laid out.
        final_norm: behind them.
        dtype: what is computed in, bfloat16 or float32; with the latter, weights may be float16.

    Raises:
        ModelLoadFailedError: the shapes of tensors contradict each other.
    """

    def __init__(
        self,
        library: Library,
        embedding: Embedding,
        layers: Iterable[layer.Layer],
        final_norm: layer.Norm | None,
        dtype: torch.dtype,
    ) -> None:
        self._run = native.function(library, "pass", None, POINTER(_Pass))
        self._room_bytes = native.function(library, "room_bytes", c_int64, POINTER(_Pass), brief=True)
        self._unit = 2 if dtype is torch.bfloat16 else 1
        self._kept: list[Tensor] = []
        laid_out: list[_Layer] = []
        last: layer.Layer | None = None
        for each in checked(embedding, layers, final_norm):
            laid_out.append(laid_out[-1] if each is last else self._layer(each))  # one may stand for all
            last = each
        assert last is not None
        self._layers = (_Layer * len(laid_out))(*laid_out)
        self._final_norm = self._norm(final_norm)
        self._embed = embedding
        self._embedding = _Embedding() if embedding.projection else self._tables(embedding)
        self._rows = [t if t is None else len(t) for t in (embedding.words, embedding.positions, embedding.types)]
        """Of each table; None: there is none."""
        sizes = sizes_of(last)
        self._hidden = sizes.hidden
        self._same = {
            "embedding": ctypes.addressof(self._embedding),
            "final_norm": ctypes.addressof(self._final_norm),
            "layers": ctypes.addressof(self._layers),
            "count": len(laid_out),
            "pre_norm": last.pre_norm,
            "hidden": whole(self._hidden),
            "heads": sizes.heads,
            "key_heads": sizes.key_heads,
            "size": sizes.head,
        }

    def __call__(self, packed: Packed, tables: Sequence[Rotary], masks: Sequence[AttentionMask]) -> Tensor:
        """The states behind all layers, [T, hidden] float32, of rows of whole `PANEL`.

        Args:
            packed: the batch, of T tokens.
            tables: its rotations, float32, of as many places as the longest text has.
            masks: what the layers see of it.

        Raises:
            ValueError: one of these is not as large as the weights say, beyond which nothing may be read.
        """
        self._check(packed, tables, masks)
        tokens = packed.tokens
        positions = tokens.counted(self._embed.padding)
        shape = len(tokens.ids), whole(self._hidden)
        # From the start of a line on, else each vector and each row of a tile would be read and written in two.
        states = buffers.piece(4 * shape[0] * shape[1]).view(np.float32).reshape(shape)
        if self._embed.projection:
            states[:, : self._hidden] = self._embed(packed).numpy()
            states[:, self._hidden :] = 0
        rotaries = (_Rotary * len(tables))(
            *(_Rotary(each.cosines.data_ptr(), each.sines.data_ptr()) for each in tables)
        )
        masked = (_Mask * len(masks))(*(_mask(mask, packed.longest) for mask in masks))
        batch = _Pass(
            states=address(states),
            ids=address(tokens.ids),
            positions=address(positions),
            types=None if tokens.types is None else address(tokens.types),
            rotaries=ctypes.addressof(rotaries),
            masks=ctypes.addressof(masked),
            cu_seqlens=address(tokens.cu_seqlens),
            seen=address(tokens.seen),
            tokens=len(tokens.ids),
            texts=len(tokens.seen),
            longest=packed.longest,
            threads=torch.get_num_threads(),
            **self._same,
        )
        room = buffers.piece(self._room_bytes(batch))
        batch.room = address(room)
        self._run(batch)
        computed = torch.from_numpy(states)
        return computed if states.shape[1] == self._hidden else computed[:, : self._hidden]

    def _check(self, packed: Packed, tables: Sequence[Rotary], masks: Sequence[AttentionMask]) -> None:
        ids, (words, positions, known) = packed.tokens.ids, self._rows
        if ids.view(np.uint64).max() >= words:  # as such, one below zero is beyond all words
            raise ValueError(f"token ids from {ids.min()} to {ids.max()} for {words} words")
        if positions is not None and packed.longest + self._embed.first_position > positions:
            raise ValueError(f"{packed.longest} tokens for {positions} positions")
        types = 1 if packed.tokens.types is None else 2
        if known is not None and known < types:
            raise ValueError(f"texts of {types} types, a pair's second text, for {known}")
        size = self._same["size"]
        if any(table.shape[-1] != size or len(table) < packed.longest for rotary in tables for table in rotary):
            raise ValueError(f"rotations that are not of {packed.longest} places of heads of {size} numbers")
        for bias in (mask.bias for mask in masks if mask.bias is not None):
            if len(bias) != self._same["heads"] or bias.shape[-1] < packed.longest:
                raise ValueError(f"a bias of {tuple(bias.shape)} for {self._same['heads']} heads")

    def _tables(self, of: Embedding) -> _Embedding:
        words, positions, types = (
            _Table() if table is None else _Table(self._keep(table), FLOATS.index(table.dtype))
            for table in (of.words, of.positions, of.types)
        )
        size, first = of.words.shape[1], of.first_position
        return _Embedding(words, positions, types, self._norm(of.norm), size, first)

    def _layer(self, of: layer.Layer) -> _Layer:
        attention, forward = of.attention, of.feed_forward
        return _Layer(
            qkv=self._product(attention.qkv),
            output=self._product(attention.output),
            up=self._product(forward.up),
            gate=self._product(forward.gate) if forward.gate else _Product(),
            down=self._product(forward.down),
            q_norm=self._norm(attention.q_norm),
            k_norm=self._norm(attention.k_norm),
            attention_norm=self._norm(of.attention_norm),
            between_norm=self._norm(of.between_norm),
            output_norm=self._norm(of.output_norm),
            rotary=attention.rope,
            mask=attention.mask,
        )

    def _product(self, of: linear.Product) -> _Product:
        assert of.weight is not None
        outward, inward = map(whole, of.weight.shape)
        return _Product(
            weight=self._keep(panels(of.weight, self._unit)),
            bias=None if of.bias is None else self._keep(_padded(of.bias)),
            inward=inward,
            outward=outward,
            activation=ACTIVATIONS.index(of.activation),
            halved=of.weight.dtype is torch.float16,
        )

    def _norm(self, of: layer.Norm | None) -> _Norm:
        if of is None:
            return _Norm()
        return _Norm(
            weight=self._keep(_padded(of.weight)),
            bias=None if of.bias is None else self._keep(_padded(of.bias)),
            eps=of.eps,
            rms=of.rms,
            size=len(of.weight),
            exists=True,
        )

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that lives as long as this does."""
        self._kept.append(tensor := tensor.contiguous())
        return tensor.data_ptr()


def panels(weight: Tensor, unit: int) -> Tensor:
    """[out, in] as products read it, [out / 32, in / unit, 32, unit]: both in whole 32s, what is added is zeros."""
    outward, inward = weight.shape
    more = (0, whole(inward) - inward, 0, whole(outward) - outward)
    weight = pad(weight, more) if any(more) else weight.contiguous()  # without any it would be copied all the same
    together = weight.view(torch.int32) if unit == 2 else weight  # two numbers move as one
    by_panel = together.view(len(weight) // PANEL, PANEL, -1).transpose(1, 2)
    return buffers.empty(by_panel.shape, by_panel.dtype).copy_(by_panel)


def _padded(vector: Tensor) -> Tensor:
    return pad(vector.float(), (0, whole(len(vector)) - len(vector)))


def whole(number: int) -> int:
    """The next multiple of `PANEL`."""
    return -(-number // PANEL) * PANEL


def _mask(of: AttentionMask, longest: int) -> _Mask:
    return _Mask(
        causal=of.causal,
        window=-1 if of.window is None else min(of.window, longest),  # a config may say more than 32 bits hold
        bias=None if of.bias is None else of.bias.data_ptr(),
        side=0 if of.bias is None else of.bias.shape[-1],
        slopes=None if of.slopes is None else of.slopes.data_ptr(),
    )
