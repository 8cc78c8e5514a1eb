"""Precision: the numbers a device computes with, as its hardware says; never one it would have to emulate."""

from __future__ import annotations

import torch

from sie_sdk.errors import ConfigurationError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def precision(device: torch.device, wanted: str = "auto") -> torch.dtype:
    """The type of a model's parameters and states on ``device``.

    Args:
        wanted: "auto", or a type by name; then it is taken as it is.

    Raises:
        ConfigurationError: there is no such type.
    """
    if wanted != "auto":
        if wanted not in PRECISIONS:
            raise ConfigurationError(
                f"SIE_PRECISION={wanted!r} is unknown.", field="SIE_PRECISION", limit=f"auto, {', '.join(PRECISIONS)}"
            )
        return PRECISIONS[wanted]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    return torch.bfloat16 if native_bfloat16() else torch.float32


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX) and torch uses it."""
    return torch._C._has_mkldnn and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
