"""Linear layers, and the layout of their weights: on a CPU they are reordered once for oneDNN, or halved to float16.

Measured (``bench/engine.py``): on two Zen 5 cores, with reordered weights in bfloat16, the whole model is twice as fast
as with torch's own linear layers; on Zen 3 cores, which have no more than AVX2, a short text takes two thirds of its
time with halved ones. They take no more memory, since the plain weight is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu
from torch.nn.functional import linear as _linear

from sie_bundle.engine.precision import arithmetic
from sie_sdk.errors import ModelLoadFailedError

Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu", "tanh"]
Linear = Callable[[Tensor], Tensor]
"""[T, in] of any float type to [T, out] of the weight's."""

ACTIVATIONS: dict[Activation, Linear] = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": torch.relu,
    "silu": silu,
    "tanh": torch.tanh,
}
_IN_PLACE: dict[Activation, Linear] = {
    "none": lambda x: x,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "relu": torch.relu_,
    "silu": partial(silu, inplace=True),
    "tanh": torch.tanh_,
}
# As oneDNN's linear layer names them, with the algorithm.
_FUSED: dict[Activation, tuple[str, str]] = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}
# The names ``config.json`` uses; its "gelu" is the exact one, by erf.
_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "tanh": "tanh",
}


def activation(name: str) -> Activation:
    """The activation ``config.json`` calls ``name``.

    Raises:
        ModelLoadFailedError: there is none of that name here.
    """
    if name not in _NAMES:
        raise ModelLoadFailedError(f"The activation {name!r} is not supported.", hint=f"Known: {', '.join(_NAMES)}.")
    return _NAMES[name]


def linear(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Linear:
    """``activation(x @ weight.T + bias)`` as fast as this device can. ``weight`` [out, in], ``bias`` [out]."""
    if arithmetic(weight.device, weight.dtype) is not weight.dtype:
        return halved(weight, bias, activation)
    if weight.device.type == "cpu" and torch._C._has_mkldnn:
        return prepacked(weight, bias, activation)
    return plain(weight, bias, activation)


def plain(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Linear:
    """With torch's own kernels, on any device."""
    act = ACTIVATIONS[activation]
    return lambda x: act(_linear(x.to(weight.dtype), weight, bias))


def prepacked(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Linear:
    """With oneDNN: the weight is reordered now instead of at every call, the activation fused."""
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise
    name, algorithm = _FUSED[activation]
    if reordered.dtype is torch.float32 and activation != "none":
        # Its activations in float32 take four times as long as torch's own: half as long as the whole product.
        act = _IN_PLACE[activation]
        return lambda x: act(run(x.to(torch.float32), reordered, bias, "none", [], ""))
    return lambda x: run(x.to(reordered.dtype), reordered, bias, name, [], algorithm)


def halved(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Linear:
    """With FBGEMM, on a CPU: the weight is kept in float16, rows and results are float32. No code is made by size.

    ``weight`` [out, in] and ``bias`` [out] of any float type.
    """
    kept = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
    run, act = torch.ops.quantized.linear_dynamic_fp16, _IN_PLACE[activation]
    return lambda x: act(run(x.to(torch.float32), kept))
