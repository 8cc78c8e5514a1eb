"""Reads a process's settings from ``SIE_*`` environment variables, once, at the start.

A settings class is a frozen ``msgspec.Struct``; its field ``max_body_bytes`` is the variable ``SIE_MAX_BODY_BYTES``.
A wrong value stops the start with one line that names the variable. This module knows no particular setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from sie_sdk.errors import ConfigurationError

S = TypeVar("S", bound=msgspec.Struct)

_RANGE = re.compile(r"`\w+` ([<>]=? \S+|matching regex .*)$")

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
            reason = f"{_meant(field.name, field.type, str(error))} is meant"
            raise ConfigurationError(f"{name}={environ[name]!r} is wrong: {reason}.", field=name) from None
    return settings(**values)


def _meant(name: str, kind: object, fault: str) -> str:
    """A value of this type as a person would call it; ``fault``: what msgspec says, read for ranges and patterns."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    limit = _RANGE.search(fault)
    if name.endswith("_bytes"):
        return f"a whole number of bytes{f' {limit[1]}' if limit else ''}, such as 8589934592,"
    if kind in (Seconds, Positive):
        return f"a number of seconds, {'0' if kind == Seconds else 'more than 0'} to {DAY_S:g},"
    plain: Any = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    what = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}.get(plain, "another value")
    return f"{what} {limit[1]}" if limit else what
