"""Templates: a text with named places, filled in one pass. Pure.

Owns the writing, ``{name}``. Braces around anything else mean nothing, in a template as in what is filled in.
"""

from __future__ import annotations

import re
from typing import Final

PROMPT: Final = ("text", "instruction")
"""The places of a template for queries or documents; the first has to be there."""

_PLACE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")


def fault(template: str, known: tuple[str, ...] = PROMPT) -> str:
    """What is wrong with a template: no place for the first of ``known``, or one for something else. Empty: nothing."""
    places = _PLACE.findall(template)
    if strange := next((place for place in places if place not in known), None):
        return f"has a place {{{strange}}}; it may have {' and '.join(f'{{{name}}}' for name in known)}"
    return "" if known[0] in places else f"has no place {{{known[0]}}}"


def filled(template: str, **values: str) -> str:
    """The template with its places filled; a value that looks like a place stays what it is."""
    return _PLACE.sub(lambda found: values.get(found[1], found[0]), template)
