"""Which variants of the compiled code this machine makes and runs; that of AMX also where its tiles are computed by
ordinary instructions (``tiles.h``), so that it is tested on other CPUs too."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from unittest import mock

import pytest
import torch

from sie_bundle import compiling
from sie_bundle.engine import native

FOLDER = native.KEPT

EMULATED = "amx_emulated"
_TILES = Path(__file__).with_name("tiles.h")
_FLAGS = {
    **compiling.VARIANTS,
    EMULATED: (
        *(flag for flag in compiling.VARIANTS["amx"] if not flag.startswith("-mamx")),
        *("-include", str(_TILES), f"-DTILES={zlib.crc32(_TILES.read_bytes())}"),
    ),
}

_SUPPORTED = {
    "amx": lambda: torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx(),
    "avx512_bf16": torch.cpu._is_avx512_bf16_supported,
    "avx512": torch.cpu._is_avx512_supported,
    "avx2": torch.cpu._is_avx2_supported,
    EMULATED: torch.cpu._is_avx512_bf16_supported,
}
HERE = [of for of, supported in _SUPPORTED.items() if supported()] if shutil.which("g++") else []
"""Not only the best one, which alone would be used."""

EVERY = [
    pytest.param(of, marks=pytest.mark.skipif(of not in HERE, reason="this CPU, or its compiler, is not here"))
    for of in _FLAGS
]
REAL = EVERY[: len(compiling.VARIANTS)]
"""Without the one of emulated tiles, which computes too slowly for a whole model."""


def dtype(of: str) -> torch.dtype:
    """What a variant computes in."""
    return torch.bfloat16 if "-DSIE_BFLOAT16" in _FLAGS[of] else torch.float32


def library(of: str) -> native.Library:
    """A variant's, made once for this machine."""
    with mock.patch.dict(compiling.VARIANTS, _FLAGS):
        found = native.library(of, FOLDER)
    assert found is not None
    return found
