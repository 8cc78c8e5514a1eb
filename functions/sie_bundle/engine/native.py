"""Compiled code: found for this machine's instructions, or made once by its C++ compiler.

Owns which variant of ``kernels/`` this CPU runs, and where its library is looked for. How one is made is
``compiling``'s; what is called in them is ``fused``'s, and ``models.words``'. Nothing depends on it: where there is
neither a library nor a compiler, torch computes each step of a pass, and Python reads texts.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_bundle import compiling
from sie_bundle.compiling import KEPT as KEPT  # for whoever loads a model
from sie_bundle.compiling import WORDS as WORDS
from sie_bundle.once import once

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

log = logging.getLogger("sie.bundle.native")

Library = ctypes.CDLL


def variant(dtype: torch.dtype) -> str | None:
    """The variant that computes in ``dtype``, float32 or bfloat16, with the best of this CPU; None: there is none."""
    import torch

    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    if dtype is torch.bfloat16:
        if torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx():
            return "amx"
        return "avx512_bf16" if torch.cpu._is_avx512_bf16_supported() else None
    if torch.cpu._is_avx512_supported():
        return "avx512"
    return "avx2" if torch.cpu._is_avx2_supported() else None


@once
def library(of: str, folder: Path) -> Library | None:
    """A variant's library: from beside the sources, where images have it, or from a folder, made there if need be.

    None: it is in neither and cannot be made, which is logged once.
    """
    packaged = compiling.SOURCES / compiling.name(of)
    try:
        path = packaged if packaged.exists() else compiling.made(of, folder)
        found = Library(str(path))
    except OSError as error:
        log.warning("without %s torch computes each step of a pass, or Python reads texts: %s", packaged.name, error)
        return None
    log.info("compiled code: %s", path)
    return found


def function(library: Library, name: str, result: Any, *arguments: Any, brief: bool = False) -> Callable[..., Any]:
    """One of a library's functions, with ctypes' names of what it gives and takes.

    ``brief``: it keeps Python's lock, because it takes less time than asking for the lock again would.
    """
    kind = ctypes.PYFUNCTYPE if brief else ctypes.CFUNCTYPE
    return kind(result, *arguments)((name, library))


def address(array: npt.NDArray[Any]) -> int:
    """Where an array's numbers lie, for one of those functions; it has some, side by side, and may be written to.

    numpy's own ``ctypes.data`` takes three times as long.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # a buffer to mypy from 3.12 on
