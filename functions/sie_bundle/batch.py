"""Which rows go into the next forward pass: a pure function of the queue and the clock.

Owns the rules: one model per batch, oldest first, up to a cost ceiling, nobody who has left, large requests in slices.
Not here: the queue's lock, the device and the answers (``executor``). Changes nothing it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import msgspec


class Entry(msgspec.Struct, frozen=True, eq=False):
    """One request on its way to the device."""

    key: Hashable
    """What a batch may not mix: the model."""
    lengths: tuple[int, ...]
    """Tokens of each row; at least one row."""
    deadline: float | None = None
    """When nobody wants the answer any more, on the clock of ``now``."""
    gone: Callable[[], bool] = lambda: False
    """Whether the caller has left."""


class Slice(NamedTuple):
    """Rows ``start`` to ``stop`` of an entry: what is still to be computed of it, or its part of one batch."""

    entry: Entry
    start: int
    stop: int

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.entry.lengths[self.start : self.stop]


class Formed(NamedTuple):
    """The next batch, what remains queued, and what nobody waits for any more."""

    batch: list[Slice]
    rest: list[Slice]
    dropped: list[Slice]


def cost(lengths: Sequence[int], quadratic: float = 0.0) -> float:
    """What rows cost the device, in tokens: linear layers by token, attention by ``quadratic`` per squared length."""
    return sum(lengths) + quadratic * sum(length * length for length in lengths)


def form(queue: Sequence[Slice], now: float, ceiling: float, quadratic: float = 0.0) -> Formed:
    """Form the next batch from a queue that is in order of arrival.

    The oldest slice is always in the batch and chooses its model, so nothing starves. Younger slices of that model
    join as long as they fit whole under the ceiling; one that does not fit is overtaken only until it is the oldest.
    An oldest slice over the ceiling gives as many rows as fit (one at least) and queues for the others at the end, so
    that a large request shares the device with the small ones behind it.
    """
    dropped = [part for part in queue if _unwanted(part.entry, now)]
    waiting = [part for part in queue if not _unwanted(part.entry, now)]
    if not waiting:
        return Formed([], [], dropped)
    oldest, *younger = waiting
    fits = _rows_that_fit(oldest, ceiling, quadratic)
    batch = [oldest._replace(stop=oldest.start + fits)]
    room = ceiling - cost(batch[0].lengths, quadratic)
    rest = []
    for part in younger:
        price = cost(part.lengths, quadratic)
        if part.entry.key == oldest.entry.key and price <= room:
            batch.append(part)
            room -= price
        else:
            rest.append(part)
    if batch[0].stop < oldest.stop:
        rest.append(oldest._replace(start=batch[0].stop))
    return Formed(batch, rest, dropped)


def _unwanted(entry: Entry, now: float) -> bool:
    return entry.gone() or (entry.deadline is not None and entry.deadline < now)


def _rows_that_fit(part: Slice, ceiling: float, quadratic: float) -> int:
    total = 0.0
    for rows, length in enumerate(part.lengths):
        total += cost((length,), quadratic)
        if total > ceiling:
            return max(rows, 1)
    return len(part.lengths)
