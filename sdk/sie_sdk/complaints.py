"""What msgspec says of a body that it does not take, as errors that name the field. Pure.

Owns the wording. Not here: what a body must hold beyond its types (``wire`` and whoever else reads one).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from sie_sdk.errors import InvalidInputError

_MISSING = re.compile("Object missing required field `(.*)`")
_HALF_A_PAIR = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')


def malformed(
    error: msgspec.DecodeError | UnicodeDecodeError | RecursionError, body: bytes, form: str, example: str
) -> InvalidInputError:
    """The error for a body that is no JSON or msgpack; ``form`` is what it should be, ``example`` a body that is."""
    if isinstance(error, RecursionError):
        return InvalidInputError("The body is nested too deeply.", field="body", hint=f"Send {example}.")
    said = str(error).rstrip(".")
    # msgspec takes the quote behind it for the other half, and what follows for too little.
    if said == "Input data was truncated" and _HALF_A_PAIR.search(body.replace(rb"\\", b"")):
        said = "a text ends with half of a surrogate pair"
    return InvalidInputError(
        f"The body is not valid {form}: {said}.", field="body", hint=f"Send {example} in that format."
    )


def wrong_field(
    error: msgspec.ValidationError, example: str, allowed: Mapping[str, Sequence[str]] | None = None
) -> InvalidInputError:
    """The error for a field of a wrong type or value: ``Expected `str`, got `int` - at `$.items[3].text```.

    ``allowed``: the values of each field that takes a few only, by its name without a path.
    """
    what, _, place = str(error).partition(" - at `")
    if place.startswith("key` in `"):
        what = f"a key: {what[0].lower()}{what[1:]}"
    field = place.partition("$")[2].rstrip("`").lstrip(".") or None
    if missing := _MISSING.fullmatch(what):
        field = f"{field}.{missing[1]}" if field else missing[1]
        return InvalidInputError(f"{field} is missing.", field=field, hint=f"The body looks like {example}.")
    name = (field or "").rpartition(".")[2].partition("[")[0]
    few = (allowed or {}).get(name, ()) if what.startswith("Invalid enum value") else ()
    what = what.replace("`", "").replace("object", "map").rstrip(".")
    return InvalidInputError(
        f"{field or 'The body'} is wrong: {what[0].lower()}{what[1:]}.",
        field=field or "body",
        hint=f"Allowed: {', '.join(few)}." if few else f"The body looks like {example}.",
    )
