"""A request's headers by name, and what ``Prefer`` says. Pure.

Owns that a header which is there several times is one list (RFC 9110, 5.3), and the grammar of preferences (RFC 7240).
What a header leads to is decided where it is read.
"""

from __future__ import annotations

import re

from starlette.types import Scope

_MEMBER = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
"""What stands between the commas of a list; those in quotes are text."""
_BEFORE_PARAMETERS = re.compile(r'(?:[^;"]|"(?:[^"\\]|\\.)*"?)*')
_QUOTED_PAIR = re.compile(r"\\(.)")


def by_name(scope: Scope) -> dict[str, str]:
    """The headers by name in lower case, the values of one that comes several times joined by commas."""
    given: list[tuple[bytes, bytes]] = scope["headers"]
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in given}
    if len(named) < len(given):  # seldom
        lists: dict[str, list[str]] = {}
        for name, value in given:
            lists.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        named = {name: ", ".join(values) for name, values in lists.items()}
    return named


def preferences(prefer: str | None) -> dict[str, str]:
    """The preferences in a ``Prefer`` header by name in lower case, each as it comes first and without its parameters.

    One without a value has an empty one, which is the same.
    """
    found: dict[str, str] = {}
    for member in _MEMBER.findall(prefer or ""):
        bare = _BEFORE_PARAMETERS.match(member)
        name, _, value = (bare[0] if bare else "").partition("=")
        found.setdefault(name.strip().lower(), _unquoted(value.strip()))
    return found


def _unquoted(word: str) -> str:
    return _QUOTED_PAIR.sub(r"\1", word[1:-1]) if len(word) > 1 and word[0] == word[-1] == '"' else word
