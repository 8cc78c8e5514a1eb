"""Linear layers, and the layout of their weights: on a CPU they are reordered once for oneDNN, where it is there.

Measured (``bench/engine.py``, two Zen 5 cores): with reordered weights the whole model is twice as fast as with torch's
own linear layers. They take no more memory, since the plain weight is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import gelu
from torch.nn.functional import linear as _linear

Activation = Literal["none", "gelu", "relu"]
Linear = Callable[[Tensor], Tensor]
"""[T, in] to [T, out]."""

_ACTIVATIONS: dict[Activation, Linear] = {"none": lambda x: x, "gelu": gelu, "relu": torch.relu}


def linear(weight: Tensor, bias: Tensor, activation: Activation = "none") -> Linear:
    """``activation(x @ weight.T + bias)`` as fast as this device can. ``weight`` [out, in], ``bias`` [out]."""
    if weight.device.type == "cpu" and torch._C._has_mkldnn:
        return prepacked(weight, bias, activation)
    return plain(weight, bias, activation)


def plain(weight: Tensor, bias: Tensor, activation: Activation = "none") -> Linear:
    """With torch's own kernels, on any device."""
    act = _ACTIVATIONS[activation]
    return lambda x: act(_linear(x, weight, bias))


def prepacked(weight: Tensor, bias: Tensor, activation: Activation = "none") -> Linear:
    """With oneDNN: the weight is reordered now instead of at every call, the activation fused (GELU by erf)."""
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    run = torch.ops.mkldnn._linear_pointwise
    return lambda x: run(x, reordered, bias, activation, [], "none")
