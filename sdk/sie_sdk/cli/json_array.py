"""A JSON array as inputs: whether a line begins one, and its elements, each to be read when its turn comes.

Owns how large it may be: unlike lines it is held as a whole, since it may end wrong after any number of elements. Not
here: what an element has to be (``inputs``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from sie_sdk.errors import InvalidInputError

MOST_BYTES = 256 * 1024 * 1024
"""Of a whole array. Measured: one of 231 MiB on one line, 4.5 million texts of 50 characters, takes 680 MiB."""

_BEGINS = re.compile(rb'\s*\[\s*(["{\]]|$)')
_elements = msgspec.json.Decoder(list[msgspec.Raw])


def begins(line: bytes) -> bool:
    """Whether the first line that is not empty is that of an array, or holds a whole one, and is no text like [1]."""
    return _BEGINS.match(line) is not None or (line.lstrip().startswith(b"[") and _is_whole(line))


def read(lines: Iterable[bytes]) -> list[msgspec.Raw]:
    """The elements, as they stand in it.

    Raises:
        InvalidInputError: it is none, or too large.
    """
    body = bytearray()
    for line in lines:
        body += line
        if len(body) > MOST_BYTES:
            raise too_large("The JSON array")
    try:
        return _elements.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(
            f"What begins like a JSON array is none: {error}. With --format text each line is a text."
        ) from None


def too_large(what: str) -> InvalidInputError:
    """The error of what has over `MOST_BYTES`."""
    return InvalidInputError(
        f"{what} has over {MOST_BYTES >> 20} MiB. Lines may be any number: jq -c '.[]' makes them."
    )


def _is_whole(line: bytes) -> bool:
    try:
        _elements.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
