"""Everything that is wrong with a document, told at once: a mapping from YAML or JSON made a record. Pure.

Owns the wording. What a record may say stands with the record (``bundle_spec``, ``machine_profile``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from sie_sdk.errors import ConfigurationError

R = TypeVar("R", bound=msgspec.Struct)


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
