"""All layers of a pass on a CPU as one call of compiled code: each product together with what is done to its results.

Owns the layout of the weights that ``kernels/`` reads, its structures, and what it is told of a batch. Which steps
there are is ``layer``'s: a `Layer` with plain weights goes in. Finding the library is ``native``'s.

What it is faster by (``bench/README.md``): results of products are activated, added and rounded while they are in
registers, rows between two attentions go through all steps while they are in the cache, and products of AMX go on
beside that. torch has no step that does several of these at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sie_bundle.engine import layer, linear
from sie_bundle.engine.native import Library
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.positions import Turn
from sie_bundle.engine.sight import Sight
from sie_sdk.errors import ModelLoadFailedError

PANEL = 32
"""Columns of a weight that lie together; every dimension is made whole such."""

ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu", "silu", "tanh")
"""In the library's order."""

ALIGNED = 64
"""Bytes."""


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
        *_fields(c_int32, "turn sight"),
    )


class _Turn(ctypes.Structure):
    _fields_ = tuple(_fields(c_void_p, "cosines sines"))


class _Sight(ctypes.Structure):
    _fields_ = (*_fields(c_int32, "causal window"), ("bias", c_void_p), ("side", c_int64), ("slopes", c_void_p))


class _Pass(ctypes.Structure):
    _fields_ = (
        *_fields(c_void_p, "states room layers turns sights bounds seen"),
        *_fields(c_int32, "count pre_norm tokens texts longest hidden heads key_heads size threads"),
    )


class Fused:
    """All layers of one encoder. Several threads may call it at once.

    Args:
        library: ``native.library``'s, for ``dtype``.
        layers: with plain weights [out, in], which are not kept.
        dtype: what is computed in, bfloat16 or float32; with the latter, weights may be float16.

    Raises:
        ModelLoadFailedError: the shapes of tensors contradict each other.
    """

    def __init__(self, library: Library, layers: Sequence[layer.Layer], dtype: torch.dtype) -> None:
        self._run, self._room_bytes = library["pass"], library["room_bytes"]
        self._run.argtypes = self._room_bytes.argtypes = (POINTER(_Pass),)
        self._run.restype, self._room_bytes.restype = None, c_int64
        check(layers)
        self._unit = 2 if dtype is torch.bfloat16 else 1
        self._kept: list[Tensor] = []
        once = {id(each): self._layer(each) for each in layers}
        self._layers = (_Layer * len(layers))(*(once[id(each)] for each in layers))
        attention = layers[0].attention
        assert attention.qkv.weight is not None
        outward, self._hidden = attention.qkv.weight.shape
        self._same = {
            "layers": ctypes.addressof(self._layers),
            "count": len(layers),
            "pre_norm": layers[0].pre_norm,
            "hidden": whole(self._hidden),
            "heads": attention.heads,
            "key_heads": attention.key_heads,
            "size": outward // (attention.heads + 2 * attention.key_heads),
        }

    def __call__(self, x: Tensor, packed: Packed, turns: Sequence[Turn], sights: Sequence[Sight]) -> Tensor:
        """The states behind all layers, [T, hidden] float32.

        Args:
            x: what the first one takes, likewise, contiguous; computed in place.
            packed: the batch, of T tokens.
            turns: its rotations, float32.
            sights: what the layers see of it.

        Raises:
            ValueError: one of these is not as large as the layers' weights say, beyond which nothing may be read.
        """
        self._check(x, packed, turns, sights)
        states = x if x.shape[1] == whole(x.shape[1]) else pad(x, (0, whole(x.shape[1]) - x.shape[1]))
        seen = np.array([group.seen for group in packed.groups for _ in range(group.texts)], dtype=np.int32)
        turned = (_Turn * len(turns))(*(_Turn(turn.cosines.data_ptr(), turn.sines.data_ptr()) for turn in turns))
        sighted = (_Sight * len(sights))(*map(_sight, sights))
        batch = _Pass(
            states=states.data_ptr(),
            turns=ctypes.addressof(turned),
            sights=ctypes.addressof(sighted),
            bounds=packed.bounds.data_ptr(),
            seen=seen.ctypes.data,
            tokens=len(x),
            texts=len(seen),
            longest=packed.longest,
            threads=torch.get_num_threads(),
            **self._same,
        )
        room = torch.empty(self._room_bytes(batch) + ALIGNED, dtype=torch.uint8)
        batch.room = room.data_ptr() + -room.data_ptr() % ALIGNED
        self._run(batch)
        return states[:, : self._hidden]

    def _check(self, x: Tensor, packed: Packed, turns: Sequence[Turn], sights: Sequence[Sight]) -> None:
        if x.shape[1] != self._hidden:
            raise ValueError(f"states of {x.shape[1]} numbers, not {self._hidden}")
        if any(table.numel() != len(x) * self._same["size"] for turn in turns for table in turn):
            raise ValueError(f"rotations that are not of heads of {self._same['size']} numbers")
        for bias in (sight.bias for sight in sights if sight.bias is not None):
            if len(bias) != self._same["heads"] or bias.shape[-1] < packed.longest:
                raise ValueError(f"a bias of {tuple(bias.shape)} for {self._same['heads']} heads")

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
            turn=attention.rope,
            sight=attention.sight,
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


def check(layers: Sequence[layer.Layer]) -> None:
    """Compare all shapes with each other, for the compiled code reads whatever lies where they say.

    Raises:
        ModelLoadFailedError: some contradict others.
    """
    first = layers[0].attention
    outward, hidden = _shape(first.qkv)
    size = outward // (first.heads + 2 * first.key_heads)
    queries, keys = first.heads * size, first.key_heads * size
    for number, each in enumerate(layers):
        attention, forward = each.attention, each.feed_forward
        inner = _shape(forward.up)[0]
        expected: list[tuple[object, object]] = [
            (_shape(attention.qkv), (queries + 2 * keys, hidden)),
            (_shape(attention.output), (hidden, queries)),
            (_shape(forward.up), (inner, hidden)),
            (_shape(forward.gate) if forward.gate else (inner, hidden), (inner, hidden)),
            (_shape(forward.down), (hidden, inner)),
            ((attention.heads, attention.key_heads), (first.heads, first.key_heads)),
            ([len(norm) for norm in _norms(each)], [hidden] * len(_norms(each))),
        ]
        products = [attention.qkv, attention.output, forward.up, forward.gate or forward.up, forward.down]
        expected += [(len(of.bias), _shape(of)[0]) for of in products if of.bias is not None]
        for norm, wide in ((attention.q_norm, queries), (attention.k_norm, keys)):
            if norm is not None:
                own = size if len(norm.weight) == size else wide
                expected += [(len(vector), own) for vector in (norm.weight, norm.bias) if vector is not None]
        for found, wanted in expected:
            if found != wanted:
                raise ModelLoadFailedError(
                    f"Tensors of layer {number} contradict each other: {found} should be {wanted}.", reason="corrupt"
                )


def _shape(of: linear.Product) -> tuple[int, ...]:
    assert of.weight is not None
    return tuple(of.weight.shape)


def _norms(of: layer.Layer) -> list[Tensor]:
    """The vectors of norms over whole states."""
    norms = [norm for norm in (of.attention_norm, of.between_norm, of.output_norm) if norm is not None]
    return [vector for norm in norms for vector in (norm.weight, norm.bias) if vector is not None]


def panels(weight: Tensor, unit: int) -> Tensor:
    """[out, in] as products read it, [out / 32, in / unit, 32, unit]: both in whole 32s, what is added is zeros."""
    outward, inward = weight.shape
    weight = pad(weight, (0, whole(inward) - inward, 0, whole(outward) - outward)).contiguous()
    together = weight.view(torch.int32) if unit == 2 else weight  # two numbers move as one
    return together.view(len(weight) // PANEL, PANEL, -1).transpose(1, 2).contiguous()


def _padded(vector: Tensor) -> Tensor:
    return pad(vector.float(), (0, whole(len(vector)) - len(vector)))


def whole(number: int) -> int:
    """The next multiple of `PANEL`."""
    return -(-number // PANEL) * PANEL


def _sight(of: Sight) -> _Sight:
    return _Sight(
        causal=of.causal,
        window=-1 if of.window is None else of.window,
        bias=None if of.bias is None else of.bias.data_ptr(),
        side=0 if of.bias is None else of.bias.shape[-1],
        slopes=None if of.slopes is None else of.slopes.data_ptr(),
    )
