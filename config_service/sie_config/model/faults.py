"""Everything that is wrong with a document, told at once: a YAML file read, a mapping from it made a record.

Owns the errors. What is wrong is found by ``structure``; what a record may say stands with the record
(``bundle_spec``, ``machine_profile``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sie_config.model import plain, structure
from sie_sdk.errors import ConfigurationError

R = TypeVar("R", bound=msgspec.Struct)


def from_yaml(path: Path) -> Any:
    """What the one document of a YAML file says, read as strictly as what comes to the API; None: it is empty.

    Raises:
        ConfigurationError: it cannot be read as that.
    """
    try:
        documents = plain.of_file(path.name, path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path.name} cannot be read: {error.strerror}.", field=path.name) from None
    if len(documents) > 1:
        raise ConfigurationError(f"{path.name} holds {len(documents)} documents, not one.", field=path.name)
    return documents[0] if documents else None


def checked(document: Any, kind: type[R], *, origin: str) -> R:
    """The record of a mapping from YAML or JSON; ``origin``: what errors call it.

    Raises:
        ConfigurationError: names **all** faults; ``details["faults"]`` has each as a `Finding`'s fields.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"{origin} is not a mapping.", field=origin)
    if found := [each for _, each in structure.faults(document, kind)]:
        told = "; ".join(map(str, found))
        raise ConfigurationError(f"{origin} is wrong: {told}.", field=origin, faults=msgspec.to_builtins(found))
    return msgspec.convert(document, type=kind)
