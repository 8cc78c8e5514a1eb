"""Everything that is wrong with a document, told at once: a YAML file read, a mapping from it made a record.

Owns the wording. What a record may say stands with the record (``bundle_spec``, ``machine_profile``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from sie_sdk.errors import ConfigurationError

R = TypeVar("R", bound=msgspec.Struct)

# libyaml reads ten times as fast; a PyYAML built without it has the same in Python alone.
_Loader: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def from_yaml(path: Path) -> Any:
    """What a YAML file says.

    Raises:
        ConfigurationError: it cannot be read as that.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"{path.name} is not YAML: {str(error).splitlines()[0]}.", field=path.name) from None


def checked(document: Any, kind: type[R], *, origin: str) -> R:
    """The record of a mapping from YAML or JSON; ``origin``: what errors call it.

    Raises:
        ConfigurationError: names **all** faults, each with its path and what is allowed there.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"{origin} is not a mapping.", field=origin)
    if faults := list(_faults(document, kind)):
        raise ConfigurationError(f"{origin} is wrong: {'; '.join(faults)}.", field=origin, faults=faults)
    return msgspec.convert(document, type=kind)


def _faults(document: dict[str, Any], kind: type[msgspec.Struct]) -> Iterator[str]:
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in document.keys() - known.keys():
        yield f"{name}: unknown field (known: {', '.join(known)})"
    for name, field in known.items():
        if name not in document:
            if field.required:
                yield f"{name}: required"
            continue
        try:
            msgspec.convert(document[name], type=field.type)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            yield f"{name}{path.rstrip('`')}: {text}"
