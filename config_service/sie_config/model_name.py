"""How a caller names a model: ``[bundle:/]org/model[:profile]``, the same on every route and in every event. Pure.

Owns the grammar and the errors of a name that does not follow it. Whether there is such a model is ``registry``'s.
"""

from __future__ import annotations

from typing import NamedTuple

from sie_sdk.errors import InvalidInputError

GRAMMAR = "[bundle:/]org/model[:profile]"
MAX_LENGTH = 512
"""Characters of a whole name; the id of a model has at most 200."""
DEFAULT = "default"
"""The profile that is no choice: ``org/model:default`` is ``org/model``."""


class ModelName(NamedTuple):
    """A name in its parts, in lower case; ``bundle`` and ``profile`` are empty where it has none."""

    model: str
    bundle: str = ""
    profile: str = ""

    def __str__(self) -> str:
        return f"{self.bundle and self.bundle + ':/'}{self.model}{self.profile and ':' + self.profile}"


def parse(name: str, field: str = "model") -> ModelName:
    """The parts of a name; case does not matter. Nothing else is changed: neither spaces, nor dots, nor slashes.

    Args:
        name: as its caller wrote it; in a path, after it was percent-decoded once.
        field: what errors call it.

    Raises:
        InvalidInputError: it is empty, too long, or its colons make no sense.
    """
    if len(name) > MAX_LENGTH:
        raise InvalidInputError(
            f"The model's name has {len(name)} characters.", field=field, limit=MAX_LENGTH, hint=f"It is {GRAMMAR}."
        )
    first, prefixed, rest = name.lower().partition(":/")
    bundle, rest = (first, rest) if prefixed else ("", first)
    model, chosen, profile = rest.partition(":")
    if not model:
        raise _wrong(name, field, "names no model")
    if prefixed and (not bundle or "/" in bundle or ":" in bundle):
        raise _wrong(name, field, "has no name of a bundle before ':/'")
    if chosen and (not profile or "/" in profile or ":" in profile):
        raise _wrong(name, field, "has no name of a profile behind its last ':'")
    return ModelName(model, bundle, profile)


def _wrong(name: str, field: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name[:200]!r} {what}.", field=field, limit=GRAMMAR, hint=f"Write it as {GRAMMAR}; GET /v1/models lists them."
    )
