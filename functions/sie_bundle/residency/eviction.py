"""Eviction: which models go when memory is needed. Pure; how they go, and whether they are in use, is ``tier``.

The order: pinned ones never; the one used last goes last, whatever else; a model that was loaded a moment ago stays
before the others, so that two models that take turns do not push each other out with every request. Then the least
recently used first; or, when memory is scarce for the whole machine, the largest, since one drop should end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SETTLE_S = 1.0
"""A model younger than this is spared while there is an older one."""


class Held(NamedTuple):
    """One model in memory. Times are of one clock, in seconds."""

    name: str
    bytes: int
    loaded: float
    used: float
    pinned: bool = False


def order(held: Sequence[Held], now: float, scarce: bool = False) -> list[Held]:
    """Those that may go, first to go first. ``scarce``: memory is under high pressure."""
    if not held:
        return []
    newest = max(held, key=lambda each: each.used)

    def rank(each: Held) -> tuple[bool, bool, int, float]:
        return each is newest, now - each.loaded < SETTLE_S, -each.bytes if scarce else 0, each.used

    return sorted((each for each in held if not each.pinned), key=rank)


def victims(held: Sequence[Held], excess: int, now: float, scarce: bool = False) -> list[Held]:
    """So many of `order` that at least ``excess`` bytes go; all that may go, when that is not enough."""
    chosen: list[Held] = []
    freed = 0
    for each in order(held, now, scarce):
        if freed >= excess:
            break
        chosen.append(each)
        freed += each.bytes
    return chosen


def most(held: Sequence[Held], limit: int) -> int:
    """So many bytes fit under the limit once all goes that may go."""
    return max(0, limit - sum(each.bytes for each in held if each.pinned))
