"""Which files of a model's folder hold its tensors: one file, several with an index, or one of before safetensors.

Owns the three layouts that publishers use, and which goes first; and which file describes the model. What is in the
files, ``models.checkpoint`` opens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
PICKLED: Final = "pytorch_model.bin"
"""Read as tensors alone: nothing in it is run."""
SAFE: Final = (WHOLE, INDEX, "model-*-of-*.safetensors")
"""Patterns of what to fetch first; then `parts` of other names, and `PICKLED` where that brings nothing."""
GLINER_CONFIG: Final = "gliner_config.json"


def config(family: str) -> str:
    """The file that describes a model of that family."""
    return GLINER_CONFIG if family == "gliner" else "config.json"


def files(folder: Path) -> list[str]:
    """The files that hold the tensors, all of them there; empty: none do, or some of several are missing."""
    if (folder / WHOLE).is_file():
        return [WHOLE]
    if (folder / INDEX).is_file():
        named = parts(folder)
        return named if all((folder / name).is_file() for name in named) else []
    return [PICKLED] if (folder / PICKLED).is_file() else []


def whole(folder: Path) -> list[str]:
    """The same, and the index, without which several files are nothing."""
    found = files(folder)
    return [INDEX, *found] if found and found[0] not in (WHOLE, PICKLED) else found


def parts(folder: Path) -> list[str]:
    """What its index names; nothing if that is unreadable or names what is no safetensors file of its folder."""
    try:
        names = set(msgspec.json.decode((folder / INDEX).read_bytes(), type=_Index).weight_map.values())
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return []
    return sorted(names) if all(name == Path(name).name and name.endswith(".safetensors") for name in names) else []


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    """By tensor, the file."""
