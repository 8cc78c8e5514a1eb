"""Which names a mistyped one is near to. Pure.

Comparing letter by letter takes 30 us for each name, on the event loop; so it is done for a few alone, those that share
most groups of three letters with what was typed.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Mapping

LIKELY = 24
LONGEST = 200
"""Characters of a mistyped name that are looked at."""


class Nearest:
    """Names to compare with, each with what it leads to."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._groups = {name: _groups(name) for name in names}

    def to(self, typed: str, most: int = 3) -> list[str]:
        """What the nearest names lead to, the nearest first, each once; none where no name is near."""
        typed = typed[:LONGEST]
        wanted = _groups(typed)
        shared = {name: len(wanted & groups) for name, groups in self._groups.items()}
        likely = heapq.nlargest(LIKELY, shared, key=shared.__getitem__)
        close = difflib.get_close_matches(typed, likely, n=2 * most, cutoff=0.5)
        return list(dict.fromkeys(self._names[name] for name in close))[:most]


def _groups(name: str) -> frozenset[str]:
    padded = f" {name} "
    return frozenset(padded[at : at + 3] for at in range(len(padded) - 2))
