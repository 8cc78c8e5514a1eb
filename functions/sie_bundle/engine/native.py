"""Compiled code: found for this machine's instructions, or made once by its C++ compiler.

Owns which variant of ``kernels/`` this CPU runs, where libraries are kept, and how one is made. What is called in them
is ``fused``'s, and ``models.words``'. Nothing depends on it: where there is neither a library nor a compiler, torch
computes each step of a pass, and Python reads texts.

    python -m sie_bundle.engine.native               make what this machine may need now, and not at its first request
    python -m sie_bundle.engine.native --all FOLDER  all there is into a folder, as images do; torch is not needed
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sie_bundle.cache import default_cache

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

log = logging.getLogger("sie.bundle.native")

Library = ctypes.CDLL

SOURCES = Path(__file__).parent / "kernels"

KEPT = Path(default_cache()) / "kernels"
"""The folder of the user's cache where libraries are kept."""

_PASS = ("-fopenmp", "-mfma", "-mf16c", "-fno-math-errno", "-fno-trapping-math")
_AVX512 = (*_PASS, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
# Only Intel's CPUs have tiles. Tuned for any CPU a pass takes 3 % longer on them.
_AMX = ("-mamx-tile", "-mamx-bf16", "-mtune=icelake-server")
VARIANTS: dict[str, tuple[str, ...]] = {
    "amx": ("-DSIE_BFLOAT16", "-DSIE_AMX", *_AVX512, "-mavx512bf16", *_AMX),
    "avx512_bf16": ("-DSIE_BFLOAT16", *_AVX512, "-mavx512bf16"),
    "avx512": _AVX512,
    "avx2": (*_PASS, "-mavx2"),
}
"""The compiler's flags by instruction set; the first two multiply bfloat16, the others float32."""
WORDS = "words"
"""What reads texts, the same for every CPU."""

# Nothing of the C++ library is used. That of OpenMP is the one that torch has loaded: one pool of threads for both.
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-Wl,--as-needed")
COMPILERS = ("g++", "c++")


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


@functools.cache
def library(of: str, folder: Path) -> Library | None:
    """A variant's library: from beside the sources, where images have it, or from a folder, made there if need be.

    None: it is in neither and cannot be made, which is logged once.
    """
    packaged = SOURCES / _name(of)
    try:
        path = packaged if packaged.exists() else made(of, folder)
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


def made(of: str, folder: Path) -> Path:
    """The path of a variant's library in a folder; compiled, for some 2 s, unless it is there.

    Raises:
        OSError: there is no compiler, it fails, or the folder cannot be written.
    """
    if (path := folder / _name(of)).exists() and path.stat().st_size:
        return path
    compiler = _named(os.environ.get("CXX", "")) or [*filter(None, map(shutil.which, COMPILERS))][:1]
    if not compiler:
        raise FileNotFoundError(f"there is no C++ compiler ({' or '.join(COMPILERS)}; CXX names another)")
    folder.mkdir(parents=True, exist_ok=True)
    log.info("making %s, once for this machine", path)
    # Whoever looks for it finds all of it or nothing, however many make it at once.
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        unfinished = Path(beside) / path.name
        command = [*compiler, *FLAGS, *VARIANTS.get(of, ()), str(SOURCES / _source(of)), "-o", str(unfinished)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise OSError(f"{compiler[0]} failed: {done.stderr.strip()[-500:]}")
        unfinished.replace(path)
    return path


def _named(cxx: str) -> list[str]:
    """The words of a command; a program of that name, with whatever spaces and quotes, is one."""
    try:
        return [cxx] if shutil.which(cxx) else shlex.split(cxx)
    except ValueError as error:
        raise OSError(f"CXX={cxx!r} is no command: {error}") from error


def _source(of: str) -> str:
    return "words.cpp" if of == WORDS else "pass.cpp"


@functools.cache
def _name(of: str) -> str:
    """A library's file, named by all that it is made from."""
    digest = hashlib.sha256(" ".join((*FLAGS, *VARIANTS.get(of, ()))).encode())
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob(_source(of))]):
        digest.update(source.read_bytes())
    return f"{of if of == WORDS else f'pass-{of}'}-{digest.hexdigest()[:16]}.so"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make libraries ahead of time."""
    parser = argparse.ArgumentParser(
        prog="python -m sie_bundle.engine.native",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every variant, into this folder")
    folder = parser.parse_args(arguments).all
    try:
        if folder:
            paths = [made(of, folder) for of in (*VARIANTS, WORDS)]
        else:
            import torch

            # Of both: which is faster is tried at each start, and comes out otherwise where others want the CPU.
            needed = (*filter(None, map(variant, (torch.bfloat16, torch.float32))), WORDS)
            with ThreadPoolExecutor() as compilers:
                paths = list(compilers.map(partial(made, folder=KEPT), needed))
    except OSError as error:
        sys.stdout.write(f"No compiled code, so torch computes each step, and Python reads texts: {error}.\n")
        if folder:
            sys.exit(1)
    else:
        sys.stdout.write("".join(f"{path}\n" for path in paths))


if __name__ == "__main__":
    main()
