"""What a client is made with and a call is bounded by: addresses, headers, seconds, counts and lists, checked. Pure.

Owns which of them make sense and that no error repeats a secret. Not here: items and models (``calls``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from typing import TypeVar
from urllib.parse import urlsplit

from sie_sdk.errors import ConfigurationError, InvalidInputError, SIEError

T = TypeVar("T")

LONGEST_S = 1_000_000.0
"""Of one HTTP request: sockets count milliseconds in 31 bits."""

_UNWRITABLE = re.compile(r"[\s\x00-\x1f\x7f]")


def base_url(given: object) -> str:
    """The address of a server: its scheme in lower case, no final slash, and no ``/v1``, which every path begins with.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(given, str):
        raise ConfigurationError(f"base_url is a {type(given).__name__}.", field="base_url", hint="Pass a str.")
    try:
        url = urlsplit(given)
        url.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise _no_address(given, f"is no address: {error}", "Write http://host:port.") from None
    if url.scheme not in ("http", "https"):
        wrong = f"has the scheme {url.scheme!r}" if "://" in given else "has no scheme"
        raise _no_address(given, wrong, f"Write http://{shown(given).rpartition('://')[2]}.")
    if not url.hostname or _UNWRITABLE.search(given):
        raise _no_address(
            given, "names no host" if not url.hostname else "has a blank in it", "Write http://host:port."
        )
    if url.query or url.fragment:
        raise _no_address(given, "has a query or a fragment", "End it with the path before /v1.")
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


def _no_address(given: str, wrong: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"base_url {shown(given)!r} {wrong}.", field="base_url", hint=hint)


def shown(url: str) -> str:
    """A URL for people to read: who signs in with it, and the password, stay out of errors and logs."""
    before, at, after = url.rpartition("@")
    scheme, slashes, _ = before.partition("://")
    return f"{scheme}{slashes}***@{after}" if at and slashes else f"***@{after}" if at else url


def is_sendable(value: str) -> bool:
    """Whether HTTP has a form for a header's value: visible ASCII, blanks only within."""
    return value.isascii() and value.isprintable() and value == value.strip()


def header(field: str, value: str | None) -> str | None:
    """The argument ``field`` that is sent as a header. The error does not show it: it may be a key.

    Raises:
        ConfigurationError: it cannot be sent.
    """
    if value is None or (isinstance(value, str) and is_sendable(value)):
        return value
    wrong = "has characters that no header may have" if isinstance(value, str) else f"is a {type(value).__name__}"
    raise ConfigurationError(
        f"{field} {wrong}.", field=field, hint="Pass visible ASCII, without a line break or a blank at either end."
    )


def seconds(field: str, value: object, error: type[SIEError], *, bounded: bool = False) -> None:
    """Refuse what is no number of seconds; ``bounded``: or cannot bound a request."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if math.isnan(number) or (bounded and not 0 < number <= LONGEST_S):
        raise error(
            f"{field} is {value!r}.",
            field=field,
            limit=LONGEST_S if bounded else None,
            hint=f"Pass seconds above 0, at most {LONGEST_S:,.0f}." if bounded else "Pass a number of seconds.",
        )


def count(field: str, value: object, error: type[SIEError]) -> None:
    """Refuse what is no whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise error(f"{field} is {value!r}.", field=field, limit=1, hint="Pass a whole number, 1 or more.")


def listed(field: str, value: Iterable[T]) -> list[T]:
    """The names or texts of an argument as a list. One alone is refused: gone through, a str is its letters."""
    if isinstance(value, str):
        raise InvalidInputError(
            f"{field} is one text, not a list of them.", field=field, hint=f"Pass {field}=[{value!r}]."
        )
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{field} is a {type(value).__name__}.", field=field, hint="Pass a list of str.")
    return [*value]
