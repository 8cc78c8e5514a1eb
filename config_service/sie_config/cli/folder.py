"""A folder of specs as git keeps it: found, read and checked before anything is sent.

Owns which files count and that all faults of all of them are told at once. What a spec may say is ``validation``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sie_config.model import plain, validation
from sie_config.model.structure import Finding
from sie_sdk.errors import ConfigurationError

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"


class Written(NamedTuple):
    """One document of a file, and what is wrong with it. ``name``: the file, with its place if there are several."""

    name: str
    document: dict[str, Any]
    faults: list[Finding]


def read(paths: Sequence[str]) -> list[Written]:
    """Every document of these files and folders; of folders, what lies below them and is no hidden file.

    Raises:
        ConfigurationError: a path is not there, a folder has no file, a file by itself no document, or one cannot be
            read.
    """
    return [each for path in paths for each in _read(path)]


def specs(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The documents of these files and folders, all of them valid, each model once.

    Raises:
        ConfigurationError: as `read`, or lists the faults of all files.
    """
    written = read(paths)
    lines = [f"  {each.name}: {fault}" for each in written for fault in each.faults] + list(_twice(written))
    if lines:
        raise ConfigurationError(
            f"{len(lines)} fault{'s' if len(lines) > 1 else ''}:\n" + "\n".join(lines),
            hint="docs/model-spec.md says what a spec may hold.",
        )
    return [each.document for each in written]


def _read(path: str) -> list[Written]:
    try:
        files = list(_files(path))
    except OSError as error:
        raise ConfigurationError(f"{error.filename or _name(path)} cannot be read: {error.strerror}.") from None
    found = [each for name, content in files for each in _documents(name, content)]
    # An empty pipe or a file cut short would prune everything; who means that keeps an empty file in a folder.
    if not files or not (found or Path(path).is_dir()):
        told = f"Specs are YAML or JSON; of a folder, files that end in {', '.join(SUFFIXES)}."
        raise ConfigurationError(f"There is no spec in {_name(path)}.", hint=told)
    return found


def _files(path: str) -> Iterator[tuple[str, bytes]]:
    if path == STDIN:
        if sys.stdin is None:
            raise ConfigurationError("Standard input is closed.", hint="Name a file or a folder of specs.")
        yield _name(path), sys.stdin.buffer.read()
    elif (folder := Path(path)).is_dir():
        specs = (file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
        found = sorted(file for file in specs if not _hidden(file, folder))
        yield from ((str(file), file.read_bytes()) for file in found)
    elif folder.exists():
        yield path, folder.read_bytes()
    else:
        raise ConfigurationError(f"There is no {path}.", hint="Name a file or a folder of specs.")


def _name(path: str) -> str:
    return "standard input" if path == STDIN else path


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _documents(name: str, content: bytes) -> Iterator[Written]:
    documents = plain.of_file(name, content)
    for number, document in enumerate(documents, 1):
        where = name if len(documents) == 1 else f"{name}, document {number}"
        yield Written(where, document if isinstance(document, dict) else {}, validation.faults(document))


def _twice(written: Iterable[Written]) -> Iterator[str]:
    first: dict[str, Written] = {}
    for each in written:
        model = str(each.document.get("id", "")).lower()
        if model and (before := first.setdefault(model, each)) is not each:
            yield f"  {each.name}: {model} is in {before.name} already"
