"""A model's folder as far as a proposal reads it: small files whole, of the weights only names, sizes and shapes. Pure.

Owns which files those are and the reading of JSON into records, whose faults name the file and the field. What the
files say is ``papers``'.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from sie_sdk.errors import ConfigurationError

R = TypeVar("R", bound=msgspec.Struct)

SMALL: Final = 4 * 1024 * 1024
"""Bytes; a larger file is no settings file. 1,000 labels and 100,000 added tokens fit."""

SENTENCE_CONFIGS: Final = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""By which names sentence-transformers has kept the settings of its first module."""

TOKENIZER_JSON: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"

READ: Final = (
    *("config.json", "modules.json", "config_sentence_transformers.json", "tokenizer_config.json", "README.md"),
    *("artifact.metadata", "adapter_config.json", "gliner_config.json", "model.safetensors.index.json"),
    *SENTENCE_CONFIGS,
)


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a safetensors file: its type as safetensors spells it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Folder(msgspec.Struct, frozen=True):
    """``files``: contents by path. ``sizes``: bytes of every file there is. ``tensors``: of the weights, by name; None:
    they are not in safetensors, or nobody looked."""

    files: Mapping[str, bytes]
    sizes: Mapping[str, int] = {}
    tensors: Mapping[str, Tensor] | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every file there is."""
        return frozenset((*self.files, *self.sizes))


def wanted(folder: Folder) -> list[str]:
    """The files whose contents are still missing for a proposal; what modules.json names shows only when it is there.

    Raises:
        ConfigurationError: modules.json cannot be read.
    """
    names = [*READ, *(posixpath.join(own.path, "config.json") for own in modules(folder) if own.path)]
    if _tells_of_tokens(folder) or folder.sizes.get(TOKENIZER_JSON, SMALL) < SMALL:
        names.append(TOKENIZER_JSON)
    return [name for name in dict.fromkeys(names) if name in folder.sizes and name not in folder.files]


def _tells_of_tokens(folder: Folder) -> bool:
    """Whether settings say what tokenizer.json, which may have many megabytes, has to do, too."""
    settings = (folder.files.get(name, b"") for name in (TOKENIZER_CONFIG, *SENTENCE_CONFIGS))
    return any(map(_OPTIONS.search, settings))


_OPTIONS = re.compile(
    rb'"(strip_accents|tokenize_chinese_chars|add_prefix_space|truncation_side|model_input_names)"\s*:\s*[^n\s]'
    rb'|"do_lower_case"\s*:\s*[tf]'
)


class Module(msgspec.Struct, frozen=True):
    """One step of a sentence-transformers model."""

    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        """The class without its package."""
        return self.type.rpartition(".")[2]


def modules(folder: Folder) -> list[Module]:
    """The steps that modules.json lists.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if (found := parsed(folder, "modules.json")) is None:
        return []
    if not isinstance(found, list):
        raise fault("modules.json", "", f"a list is expected, not {_called(found)}")
    read = [converted(own, Module, "modules.json", f"[{place}]") for place, own in enumerate(found)]
    paths = [posixpath.normpath(own.path) for own in read]
    return [Module(own.type, "" if path == "." else path) for own, path in zip(read, paths, strict=True)]


def record(folder: Folder, name: str, kind: type[R]) -> R | None:
    """A file as a record: fields that are null count as absent, and what the record does not name is ignored.

    Raises:
        ConfigurationError: it is not JSON, or a field is of another type than it can be; names both.
    """
    found = parsed(folder, name)
    return None if found is None else converted(found, kind, name)


def parsed(folder: Folder, name: str) -> Any:
    """The JSON of a file; None: there is no such file.

    Raises:
        ConfigurationError: it is not JSON.
    """
    if (content := folder.files.get(name)) is None:
        return None
    try:
        found = json.loads(content, parse_int=_whole)
        if b"\\ud" in content.lower():
            json.dumps(found, ensure_ascii=False).encode()  # halves of characters, which no YAML can hold
        return found
    except (ValueError, RecursionError) as error:
        raise fault(name, "", f"it is not JSON ({str(error)[:120]})") from None


def _whole(digits: str) -> int | float:
    """Tokenizers without a limit say 10 ** 30."""
    return int(digits) if len(digits) <= 18 else float(digits)


def converted(found: Any, kind: type[R], name: str, place: str = "") -> R:
    """As `record`, of what was read already."""
    if not isinstance(found, dict):
        raise fault(name, place, f"a mapping is expected, not {_called(found)}")
    given = {key: value for key, value in found.items() if value is not None}
    if wrong := list(_faults(given, kind)):
        path, text = wrong[0]
        raise fault(name, f"{place}.{path}" if place else path, text)
    return msgspec.convert(given, kind)


def _faults(given: dict[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in given:
            if field.required:
                yield field.encode_name, "it is missing"
            continue
        try:
            msgspec.convert(given[field.encode_name], field.type)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            yield f"{field.encode_name}{path.rstrip('`')}", text


def fault(name: str, field: str, text: str) -> ConfigurationError:
    """The error for a file that is not what its name says."""
    return ConfigurationError(
        f"{name}{field and ': '}{field}: {text}.",
        field=f"{name}: {field}" if field else name,
        hint="The folder is damaged or of another kind. Fetch it again, or write the spec by hand (docs/models.md).",
    )


def _called(found: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(found), "a number")
