"""Everything that is wrong with a document, told at once: a YAML file read, a mapping from it made a record.

Owns the errors. What is wrong is found by ``structure``; what a record may say stands with the record
(``bundle_spec``, ``machine_profile``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from sie_config.model import structure
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
        ConfigurationError: names **all** faults; ``details["faults"]`` has each as a `Finding`'s fields.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"{origin} is not a mapping.", field=origin)
    if found := [each for _, each in structure.faults(document, kind)]:
        told = "; ".join(map(str, found))
        raise ConfigurationError(f"{origin} is wrong: {told}.", field=origin, faults=msgspec.to_builtins(found))
    return msgspec.convert(document, type=kind)
