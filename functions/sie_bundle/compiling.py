"""Making compiled code: libraries of ``engine/kernels``, by the C++ compiler of this machine.

Owns how one is made, what it is called and where it is kept. Which of them a CPU runs, and loading it, is
``engine.native``'s. Imports neither torch nor numpy: images are made by those who have nothing else.

    python -m sie_bundle.compiling               make what this machine may need now, and not at its first request
    python -m sie_bundle.compiling --all FOLDER  all there is into a folder, as images do; torch is not needed
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sie_bundle.cache import default_cache

log = logging.getLogger("sie.bundle.native")

SOURCES = Path(__file__).parent / "engine" / "kernels"

KEPT = Path(default_cache()) / "kernels"
"""Where libraries are kept, as ``SIE_CACHE_DIR`` said when this process began."""

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
COMPILE_S = 300.0
"""What a compiler may take before it counts as one that fails."""


def made(of: str, folder: Path) -> Path:
    """The path of a variant's library in a folder; compiled, for some 2 s, unless it is there.

    Raises:
        OSError: there is no compiler, it fails, or the folder cannot be written.
    """
    if is_whole(path := folder / name(of)):
        return path
    compiler = _named(os.environ.get("CXX", "")) or [*filter(None, map(shutil.which, COMPILERS))][:1]
    if not compiler:
        raise FileNotFoundError(f"there is no C++ compiler ({' or '.join(COMPILERS)}; CXX names another)")
    folder.mkdir(parents=True, exist_ok=True)
    log.info("making %s, once for this machine", path)
    # Whoever looks for it finds all of it or nothing, however many make it at once.
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        unfinished = Path(beside) / path.name
        _run([*compiler, *FLAGS, *VARIANTS.get(of, ()), str(SOURCES / _source(of)), "-o", str(unfinished)])
        # In a process of its own, which a library that is none, or that wants something of its process, may end.
        _run([sys.executable, "-I", "-S", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(unfinished)])
        with unfinished.open("r+b") as file:
            digest = hashlib.sha256(file.read()).digest()
            file.write(digest)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    return path


def is_whole(path: Path) -> bool:
    """Whether a library that was made here is there as it was made: what is mapped and cut off ends its process.

    It ends with the SHA-256 of all before, which the linker's format has room for.
    """
    size = hashlib.sha256().digest_size
    try:
        made = path.read_bytes()
    except OSError:
        return False
    if hashlib.sha256(made[:-size]).digest() == made[-size:]:
        return True
    log.warning("%s is damaged, and made anew", path)
    return False


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=COMPILE_S)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} is not done after {COMPILE_S:g} s") from error
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()[-500:] or done.returncode}")


def _named(cxx: str) -> list[str]:
    """The words of a command; a program of that name, with whatever spaces and quotes, is one."""
    try:
        return [cxx] if shutil.which(cxx) else shlex.split(cxx)
    except ValueError as error:
        raise OSError(f"CXX={cxx!r} is no command: {error}") from error


def _source(of: str) -> str:
    return "words.cpp" if of == WORDS else "pass.cpp"


@functools.cache
def name(of: str) -> str:
    """A library's file, named by all that it is made from."""
    digest = hashlib.sha256(" ".join((*FLAGS, *VARIANTS.get(of, ()))).encode())
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob(_source(of))]):
        digest.update(source.read_bytes())
    return f"{of if of == WORDS else f'pass-{of}'}-{digest.hexdigest()[:16]}.so"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make libraries ahead of time."""
    parser = argparse.ArgumentParser(
        prog="python -m sie_bundle.compiling",
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

            from sie_bundle.engine.native import variant

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
