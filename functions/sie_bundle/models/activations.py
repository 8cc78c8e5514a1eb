"""Activations under the names that ``config.json`` uses. What they compute is ``engine.linear``'s."""

from __future__ import annotations

from sie_bundle.engine.linear import Activation
from sie_sdk.errors import ModelLoadFailedError

NAMES: dict[str, Activation] = {
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
"""Its "gelu" is the exact one, by erf."""


def activation(name: str) -> Activation:
    """The activation ``config.json`` calls ``name``.

    Raises:
        ModelLoadFailedError: there is none of that name here.
    """
    if name not in NAMES:
        raise ModelLoadFailedError(f"The activation {name!r} is not supported.", hint=f"Known: {', '.join(NAMES)}.")
    return NAMES[name]
