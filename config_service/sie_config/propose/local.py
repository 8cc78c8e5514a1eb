"""A folder of this machine as a proposal reads it, with what names its version.

Owns the looking at the disk. Contents are ``folder``'s and ``papers``'.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec

from sie_config.propose import weights
from sie_config.propose.folder import SMALL, TOKENIZER_JSON, Folder, Tensor, fault, wanted
from sie_sdk.errors import ConfigurationError

_SNAPSHOT = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})$")
DEEPEST = 3
"""Folders below the model's own that are looked into."""


def read(path: Path) -> Folder:
    """Read a model's folder.

    Raises:
        ConfigurationError: it is no folder, a file in it cannot be read, is too large or not what its name says.
    """
    if not path.is_dir():
        raise ConfigurationError(
            f"There is no folder {path}.", field="FOLDER", hint="A model of the Hugging Face Hub is named ORG/MODEL."
        )
    folder = Folder({}, _sizes(path))
    while names := wanted(folder):
        folder = msgspec.structs.replace(folder, files={**folder.files, **{name: _small(path, name) for name in names}})
    safe = [name for name in weights.files(folder) if name.endswith(".safetensors")]
    every = {tensor: own for name in safe for tensor, own in _tensors(path / name, folder.sizes[name]).items()}
    return msgspec.structs.replace(folder, tensors=every if safe else None)


def named(path: Path) -> tuple[str, str] | None:
    """The id and the commit of a folder in Hugging Face's own cache; None: it is none of those."""
    found = _SNAPSHOT.search(path.absolute().as_posix())
    return (f"{found['org']}/{found['name']}", found["commit"]) if found else None


def revision(path: Path, folder: Folder) -> str:
    """What names the version of a folder without a commit: the digest of its weights, settings and tokenizer."""
    digest = hashlib.sha256()
    names = {*folder.files, *weights.files(folder), TOKENIZER_JSON}
    for name in sorted(names & folder.sizes.keys() - {"README.md"}):
        with (path / name).open("rb") as file:
            digest.update(f"{name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{digest.hexdigest()}"


def _sizes(path: Path) -> dict[str, int]:
    found = {}
    for folder, folders, names in os.walk(path):
        below = Path(folder).relative_to(path)
        folders[:] = [name for name in folders if not name.startswith(".") and len(below.parts) < DEEPEST]
        for name in names:
            own = Path(folder) / name
            if own.is_file():
                found[(below / name).as_posix()] = own.stat().st_size
    return found


def _small(path: Path, name: str) -> bytes:
    limit = SMALL * 16 if name == TOKENIZER_JSON else SMALL
    try:
        if (size := (path / name).stat().st_size) > limit:
            raise ConfigurationError(f"{path / name} has {size} bytes.", field=name, limit=limit)
        return (path / name).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path / name} cannot be read: {error.strerror or error}.", field=name) from error


def _tensors(path: Path, size: int) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            header = file.read(length := weights.header_length(file.read(8), path.name))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}.", field=path.name) from error
    if len(header) < length:
        raise fault(path.name, "header", f"it ends after {len(header)} of its {length} bytes")
    return weights.tensors(header, size, path.name)
