"""Which texts go into the next forward pass: a pure function of the queue and the clock.

Owns the rules: one model per batch, oldest first, up to a ceiling of tokens, nobody who has left, large requests in
slices. Not here: the queue's lock and the device (``executor``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from sie_bundle.tokenization import Row


class Entry(msgspec.Struct, eq=False):
    """One request's rows on their way to the device. ``taken`` of them are in a batch already."""

    model: str
    rows: list[Row]
    queued: float
    gone: Callable[[], bool]
    deadline: float | None = None
    taken: int = 0


class Slice(NamedTuple):
    """Rows ``start`` to ``stop`` of an entry."""

    entry: Entry
    start: int
    stop: int

    @property
    def rows(self) -> list[Row]:
        return self.entry.rows[self.start : self.stop]


class Formed(NamedTuple):
    """A batch, the queue that remains, and the entries nobody waits for any more."""

    batch: list[Slice]
    queue: list[Entry]
    dropped: list[Entry]


def form(queue: Sequence[Entry], now: float, ceiling: int) -> Formed:
    """Form the next batch.

    The oldest entry chooses the model, so no model starves; entries of that model join in order until the next row
    would pass ``ceiling`` tokens. A single row over the ceiling still goes, alone. ``now`` is on the deadlines' clock.
    """
    dropped = [entry for entry in queue if entry.gone() or (entry.deadline is not None and now > entry.deadline)]
    waiting = [entry for entry in queue if entry not in dropped]
    batch: list[Slice] = []
    room = ceiling
    for entry in waiting:
        if entry.model != waiting[0].model:
            continue
        start, room = entry.taken, _fill(entry, room, first=not batch)
        if entry.taken == start:
            break
        batch.append(Slice(entry, start, entry.taken))
    rest = [entry for entry in waiting if entry.taken < len(entry.rows)]
    return Formed(batch, rest, dropped)


def _fill(entry: Entry, room: int, *, first: bool) -> int:
    """Take rows of ``entry`` while they fit into ``room`` tokens; returns the room left."""
    while entry.taken < len(entry.rows):
        tokens = len(entry.rows[entry.taken])
        if tokens > room and not first:
            break
        entry.taken += 1
        room -= tokens
        first = False
    return room
