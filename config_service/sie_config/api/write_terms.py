"""What a write says beside its body: who writes, whether in earnest, under which condition, and whether again. Pure.

Owns the names and limits of these headers and parameters. A parameter that is not known is refused: who misspells
``dry_run`` does not want to write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from sie_config.api import preconditions
from sie_config.api.preconditions import Precondition
from sie_sdk.errors import InvalidInputError

LONGEST_ACTOR, LONGEST_NOTE, LONGEST_KEY = 128, 512, 128
ALWAYS: Final = ("dry_run", "note")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False, "": True}


class Terms(msgspec.Struct, frozen=True):
    """The terms of one write. ``key``: its Idempotency-Key; ``digest``: of all that it asks."""

    actor: str
    note: str
    dry_run: bool
    precondition: Precondition
    key: str
    digest: str


def read(
    path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes, further: tuple[str, ...]
) -> Terms:
    """The terms of a request; ``path`` with its method. ``further``: parameters that the route has of its own.

    Raises:
        InvalidInputError: one of them is not as it must be, or not known.
    """
    known = (*ALWAYS, *further)
    if unknown := [name for name in query if name not in known]:
        raise InvalidInputError(
            f"There is no parameter {unknown[0][:64]!r}.", field=unknown[0][:64], limit=", ".join(known)
        )
    key = headers.get("idempotency-key", "")
    asked = [path, repr(sorted(query.items())), headers.get("if-match", ""), headers.get("if-none-match", "")]
    digest = hashlib.blake2b("\0".join(asked).encode() + b"\0" + body, digest_size=16).hexdigest()
    return Terms(
        _text("X-SIE-Actor", _utf8(headers.get("x-sie-actor", "")), LONGEST_ACTOR),
        _text("note", query.get("note", ""), LONGEST_NOTE),
        truth("dry_run", query.get("dry_run", "false")),
        preconditions.read(headers),
        _key(key) if key else "",
        digest,
    )


def truth(name: str, value: str) -> bool:
    """A parameter that is true or false; alone, without a value, it is true.

    Raises:
        InvalidInputError: it is neither.
    """
    if value.lower() not in _TRUTHS:
        raise InvalidInputError(f"{name} is {value[:64]!r}.", field=name, limit="true or false")
    return _TRUTHS[value.lower()]


def _utf8(value: str) -> str:
    """A header as it was sent by those who do not send ASCII; servers read headers as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _text(name: str, value: str, longest: int) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in value).strip()
    if len(text) > longest:
        raise InvalidInputError(f"{name} has {len(text)} characters.", field=name, limit=longest)
    return text


def _key(key: str) -> str:
    if len(key) > LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise InvalidInputError(
            "Idempotency-Key is too long, or not of printable ASCII.", field="Idempotency-Key", limit=LONGEST_KEY
        )
    return key
