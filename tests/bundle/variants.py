"""Which variants of the compiled code this machine makes and runs, and a model computed by one of them."""

from __future__ import annotations

import shutil

import pytest
import torch

from sie_bundle.engine import native

FOLDER = native.KEPT

_SUPPORTED = {
    "amx": lambda: torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx(),
    "avx512_bf16": torch.cpu._is_avx512_bf16_supported,
    "avx512": torch.cpu._is_avx512_supported,
    "avx2": torch.cpu._is_avx2_supported,
}
HERE = [of for of, supported in _SUPPORTED.items() if supported()] if shutil.which("g++") else []
"""Not only the best one, which alone would be used."""

EVERY = [
    pytest.param(of, marks=pytest.mark.skipif(of not in HERE, reason="this CPU, or its compiler, is not here"))
    for of in native.VARIANTS
]


def dtype(of: str) -> torch.dtype:
    """What a variant computes in."""
    return torch.bfloat16 if "-DSIE_BFLOAT16" in native.VARIANTS[of] else torch.float32
