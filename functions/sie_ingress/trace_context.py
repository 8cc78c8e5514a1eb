"""W3C Trace Context of a request: read from its headers, carried to the worker, named in its answer. Pure.

Owns what counts as valid. Nothing begins a trace here: a request that brings none is known by its request id, and a
header more on every message of the queue would buy nobody anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

STATE_CHARACTERS = 512
"""More of a ``tracestate`` is left out as a whole: 512 is what everybody has to pass on (Trace Context, 3.3.1.5)."""

# Version 00 ends after the flags; a later one may go on behind another dash (Trace Context, 4.3): here to 256 in all.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,200})?"
)
_STATE = re.compile(r"[\x20-\x7e\t]*")


class Trace(NamedTuple):
    """A caller's trace, in the words it used."""

    parent: str
    """``traceparent``"""
    state: str | None = None
    """``tracestate``"""

    @property
    def id(self) -> str:
        """The trace id: 32 hex digits."""
        return self.parent[3:35]


def read(parents: Iterable[str], states: Iterable[str] = ()) -> Trace | None:
    """The trace that a request names, or None; an invalid one, or two at once, count as none.

    Args:
        parents: the values of all ``traceparent`` headers.
        states: those of all ``tracestate`` headers, in order; together they are one list.
    """
    match list(parents):
        case [parent] if found := _PARENT.fullmatch(parent.strip()):
            if found[1] == "00" and found[3]:
                return None
            state = ",".join(filter(None, (value.strip() for value in states)))
            keeps = 0 < len(state) <= STATE_CHARACTERS and _STATE.fullmatch(state)
            return Trace(found[0], state if keeps else None)
    return None
