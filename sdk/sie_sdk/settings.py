"""Reads a process's settings from ``SIE_*`` environment variables, once, at the start.

A settings class is a frozen ``msgspec.Struct``; its field ``max_body_bytes`` is the variable ``SIE_MAX_BODY_BYTES``.
A wrong value stops the start with one line that names the variable. This module knows no particular setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from sie_sdk.errors import ConfigurationError

S = TypeVar("S", bound=msgspec.Struct)

DAY_S = 86_400.0
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=DAY_S)]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]
"""Seconds too, and not none."""


def variable(field: str) -> str:
    """The environment variable of a settings field."""
    return f"SIE_{field.upper()}"


def read(settings: type[S], environ: Mapping[str, str] = os.environ) -> S:
    """Build ``settings`` from the environment; unset variables keep their defaults.

    Raises:
        ConfigurationError: a value does not have the field's type or range, or a required one is missing.
    """
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(settings):
        name = variable(field.name)
        if name not in environ:
            if field.required:
                raise ConfigurationError(f"{name} is not set.", field=name, hint="It has no default.")
            continue
        try:
            values[field.name] = msgspec.convert(environ[name], type=field.type, strict=False)
        except msgspec.ValidationError as error:
            reason = f"one of {', '.join(known)} is meant" if (known := _choices(field.type)) else str(error)
            raise ConfigurationError(f"{name}={environ[name]!r} is wrong: {reason}.", field=name) from None
    return settings(**values)


def _choices(kind: object) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()
