"""Virtual environments of published clients: each client has its own, made once and kept in the cache.

Owns finding an interpreter, installing and running a script there. What is asserted stands in the tests; what a client
is made to do stands in ``clients/``, scripts that only import what their environment has and print JSON.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CLIENTS = Path(__file__).parent / "clients"
ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sie-knative" / "venvs"
INSTALL_S = 600
RUN_S = 150


@cache
def interpreter(version: str) -> str | None:
    """The path of an interpreter of that version ("3.12"): on PATH, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    # pyenv's shims stand on PATH for versions that are not chosen, and refuse to run; the versions are beside them.
    roots = [
        Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser(),
        *(Path(found).parents[1:2] if found else ()),
    ]
    kept = [str(python) for root in roots for python in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    for candidate in filter(None, [found, *kept]):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def venv(name: str, requirements: Sequence[str], version: str = "3.12") -> Path:
    """The interpreter of an environment with ``requirements`` (pip's words), made if it is not there yet.

    Tests are skipped where there is no such interpreter. Processes that want the same one wait for each other.
    """
    if (base := interpreter(version)) is None:
        pytest.skip(f"Python {version} was not found; {name} needs it")
    ours = (ROOT / "pyproject.toml").read_text() if "-e" in requirements else ""
    named = hashlib.sha256("\n".join([base, *requirements, ours]).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{named}"
    python = folder / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            # uv, because it links what environments share: seconds and a tenth of the disk, where pip takes minutes.
            _uv("venv", "--python", base, str(folder))
            _uv("pip", "install", "--python", str(python), *requirements)
            (folder / "complete").touch()
    return python


def run(python: Path, script: str, *words: str, **environment: str) -> Any:
    """What ``clients/<script>`` printed as its last line, read as JSON. Fails with its whole output when it failed."""
    # Without the settings of this process: a client must not find our packages, nor a server of its own.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIE_", "PYTHON"))}
    done = subprocess.run(
        [str(python), str(CLIENTS / script), *words],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def _uv(*words: str) -> None:
    # What pip was told of a mirror holds for uv too.
    told = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    command = [sys.executable, "-m", "uv", "--quiet", *words]
    done = subprocess.run(
        command, env=os.environ | told, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}\n{done.stderr}"
