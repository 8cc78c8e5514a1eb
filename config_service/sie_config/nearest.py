"""Which names a mistyped one is near to. Pure.

Comparing letter by letter takes 30 us for each name, on the event loop; so it is done for a few alone, those that share
most groups of three letters with what was typed. Which names have a group is kept, so that a catalogue that changes
costs what has changed of it.
"""

from __future__ import annotations

import difflib
import heapq
from collections import Counter
from collections.abc import Mapping

LIKELY = 24
LONGEST = 200
"""Characters of a mistyped name that are looked at."""


class Nearest:
    """Names to compare with, each with what it leads to."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        self._having: dict[str, set[str]] = {}
        """The names that have each group."""
        self.update(names)

    def update(self, names: Mapping[str, str]) -> None:
        """Take exactly these names."""
        for name in self._names.keys() - names.keys():
            for group in _groups(name):
                having = self._having[group]
                having.discard(name)
                if not having:
                    del self._having[group]
        for name in names.keys() - self._names.keys():
            for group in _groups(name):
                self._having.setdefault(group, set()).add(name)
        self._names = dict(names)

    def to(self, typed: str, most: int = 3) -> list[str]:
        """What the nearest names lead to, the nearest first, each once; none where no name is near."""
        typed = typed[:LONGEST]
        close = difflib.get_close_matches(typed, self._likely(typed), n=2 * most, cutoff=0.5)
        return list(dict.fromkeys(self._names[name] for name in close))[:most]

    def _likely(self, typed: str) -> list[str]:
        """Of names that share as many groups, the last by name: nothing depends on the order in which they came."""
        if len(self._names) <= LIKELY:
            return sorted(self._names)
        shared: Counter[str] = Counter()
        for group in _groups(typed):
            shared.update(self._having.get(group, ()))
        return heapq.nlargest(LIKELY, shared, key=lambda name: (shared[name], name))


def _groups(name: str) -> frozenset[str]:
    padded = f" {name} "
    return frozenset(padded[at : at + 3] for at in range(len(padded) - 2))
