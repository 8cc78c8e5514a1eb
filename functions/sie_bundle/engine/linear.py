"""Linear layers, and the layout of their weights: on a CPU they are reordered once for oneDNN, or halved to float16.

Measured (``bench/engine.py``): on two Zen 5 cores, with reordered weights in bfloat16, the whole model is twice as fast
as with torch's own linear layers; on Zen 3 cores, which have no more than AVX2, a short text takes two thirds of its
time with halved ones. They take no more memory, since the plain weight is let go.
"""

# No annotations from the future: ``compiled``.
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, Optional, Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from sie_bundle.engine.precision import arithmetic

if TYPE_CHECKING:
    Halved = torch.ScriptObject
else:
    Halved = torch.classes.quantized.LinearPackedParamsBase

Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu", "tanh"]


class Linear(Protocol):
    """[T, in] of any float type to [T, out] of the weight's."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


ACTIVATIONS: dict[Activation, Linear] = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": torch.relu,
    "silu": silu,
    "tanh": torch.tanh,
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


class Product(NamedTuple):
    """One linear layer; made by `linear`."""

    weight: Tensor | None
    """[out, in], as it is or as oneDNN reordered it; None: it is halved."""
    bias: Tensor | None
    """[out]; with a halved weight it is in there."""
    halved: Optional[Halved]  # noqa: UP045  # torch's class is no type of Python
    activation: str
    """What is still to be done to the result."""
    fused: tuple[str, str] | None
    """What oneDNN does on the way, with the algorithm; None: the weight is as it was."""

    def __call__(self, x: Tensor) -> Tensor:
        """See `multiplied`."""
        return multiplied(x, self)


def multiplied(x: Tensor, of: Product) -> Tensor:
    """``activation(x @ weight.T + bias)``, [T, in] of any float type to [T, out] of the weight's."""
    weight, halved = of.weight, of.halved
    if halved is not None:
        return activated(torch.ops.quantized.linear_dynamic_fp16(x.to(torch.float32), halved), of.activation)
    assert weight is not None
    x = x.to(weight.dtype)
    fused = of.fused
    if fused is None:
        return activated(torch.nn.functional.linear(x, weight, of.bias), of.activation)
    made = torch.ops.mkldnn._linear_pointwise(x, weight, of.bias, fused[0], [], fused[1])
    return activated(made, of.activation)


def activated(x: Tensor, activation: str) -> Tensor:
    """``x`` after the activation, in place."""
    if activation == "gelu":
        torch.ops.aten.gelu_(x)
    elif activation == "gelu_tanh":
        torch.ops.aten.gelu_(x, approximate="tanh")
    elif activation == "relu":
        torch.relu_(x)
    elif activation == "silu":
        torch.ops.aten.silu_(x)
    elif activation == "tanh":
        torch.tanh_(x)
    return x


class LayOut(Protocol):
    """From a weight [out, in] and a bias [out] to a linear layer."""

    def __call__(self, weight: Tensor, bias: Tensor | None, activation: Activation = "none", /) -> Product: ...


def linear(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """``activation(x @ weight.T + bias)`` as fast as this device can. ``weight`` [out, in], ``bias`` [out]."""
    if arithmetic(weight.device, weight.dtype) is not weight.dtype:
        return halved(weight, bias, activation)
    if weight.device.type == "cpu" and torch._C._has_mkldnn:
        return prepacked(weight, bias, activation)
    return plain(weight, bias, activation)


def plain(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """With torch's own kernels, on any device."""
    return Product(weight, bias, None, activation, None)


def prepacked(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """With oneDNN: the weight is reordered now instead of at every call, the activation fused."""
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    if reordered.dtype is torch.float32:
        # Its activations in float32 take four times as long as torch's own: half as long as the whole product.
        return Product(reordered, bias, None, activation, _FUSED["none"])
    return Product(reordered, bias, None, "none", _FUSED[activation])


def halved(weight: Tensor, bias: Tensor | None, activation: Activation = "none") -> Product:
    """With FBGEMM, on a CPU: the weight is kept in float16, rows and results are float32. No code is made by size.

    ``weight`` [out, in] and ``bias`` [out] of any float type.
    """
    kept = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
    return Product(None, None, kept, activation, None)
