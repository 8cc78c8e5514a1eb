"""Which rows go into the next forward pass: a pure function of the queue and the clock.

Owns the rules: one model per batch, interactive before bulk, oldest first, up to a cost ceiling, nobody who has left,
large requests in slices. Not here: the queue's lock, the device and the answers (``executor``). Changes nothing it is
given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import msgspec

BULK_WAIT_S = 2.0
"""Seconds that bulk work stands back for interactive work before it leads one batch: under an endless interactive load
it keeps about a tenth of a device whose batches take the 0.2 s of ``SIE_BATCH_S``."""
BULK_SHARE = 0.25
"""The most of the ceiling that bulk work takes in a batch led by an interactive slice: somebody waits for all of it."""


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
    bulk: bool = False
    """Whether it stands back for those that are not."""
    queued: float = 0.0
    """When it came, on the clock of ``now``."""
    tokens: int = 0
    """Of all rows; counted once, when it is made, like ``squares``, the sum of their squared lengths."""
    squares: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tokens", sum(self.lengths))
        msgspec.structs.force_setattr(self, "squares", _squares(self.lengths))


class Slice(NamedTuple):
    """Rows ``start`` to ``stop`` of an entry: what is still to be computed of it, or its part of one batch."""

    entry: Entry
    start: int
    stop: int

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.entry.lengths[self.start : self.stop]

    @property
    def tokens(self) -> int:
        return self.entry.tokens if self._whole else sum(self.lengths)

    @property
    def squares(self) -> int:
        return self.entry.squares if self._whole else _squares(self.lengths)

    @property
    def _whole(self) -> bool:
        return self.stop - self.start == len(self.entry.lengths)


class Limits(NamedTuple):
    """The most that a batch of one model may cost, how that is counted (see `cost`), and the most tokens in it."""

    ceiling: float
    quadratic: float = 0.0
    tokens: float = float("inf")


class _Room:
    """What a batch's limits leave while it is formed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._cost, self._tokens = limits.ceiling, limits.tokens

    def takes(self, tokens: int, squares: int, *, always: bool = False) -> bool:
        """Whether rows of so many tokens fit, or are to go in ``always``; then they are in."""
        price = tokens + self._limits.quadratic * squares
        if not always and (price > self._cost or tokens > self._tokens):
            return False
        self._cost, self._tokens = self._cost - price, self._tokens - tokens
        return True

    def may_take(self, rows: int) -> bool:
        """Whether so many might fit, each of which has a token at least: asked first, since a count costs nothing."""
        return rows <= min(self._cost, self._tokens)

    def keep(self, share: float) -> None:
        """Leave no more than that share of the limits."""
        self._cost = min(self._cost, share * self._limits.ceiling)
        self._tokens = min(self._tokens, share * self._limits.tokens)


class Formed(NamedTuple):
    """The next batch, its leading slice first; what remains queued; and what nobody waits for any more."""

    batch: list[Slice]
    rest: list[Slice]
    dropped: list[Slice]


def _squares(lengths: Sequence[int]) -> int:
    return sum([length * length for length in lengths])


def form(
    queue: Sequence[Slice], now: float, limits: Callable[[Slice], Limits], bulk_led: float = float("-inf")
) -> Formed:
    """Form the next batch from a queue whose slices are, within each class, in order of arrival.

    The oldest interactive slice leads the batch and chooses its model; where there is none, or bulk's turn has come,
    the oldest bulk slice does. Then interactive slices of that model join by age, then bulk ones, as long as they fit
    whole under the ceiling, and bulk behind an interactive leader under `BULK_SHARE` of it; one that does not fit is
    overtaken only until it leads. A leading slice over the ceiling
    gives as many rows as fit (one at least) and queues for the others at the end, so that a large request shares the
    device with the small ones behind it.

    Bulk's turn comes `BULK_WAIT_S` after the oldest bulk slice came or bulk last led, whichever is later, or at half of
    that slice's time until its deadline if that is sooner, but not while the oldest interactive slice has stood back
    once already. So an interactive slice stands back for one batch at most;
    and bulk always leads again, because only finitely many slices stood back when it last did.

    Args:
        queue: what is still to be computed.
        now: any clock that does not go back.
        limits: of the model of the slice that leads.
        bulk_led: when a bulk slice last led a batch.
    """
    interactive: list[Slice] = []
    bulk: list[Slice] = []
    dropped: list[Slice] = []
    for part in queue:
        entry = part.entry
        if entry.gone() or (entry.deadline is not None and entry.deadline < now):
            dropped.append(part)
        elif entry.bulk:
            bulk.append(part)
        else:
            interactive.append(part)
    if not interactive and not bulk:
        return Formed([], [], dropped)
    leading = bulk if _bulk_leads(interactive, bulk, now, bulk_led) else interactive
    leader = leading.pop(0)
    key, room = leader.entry.key, _Room(limits(leader))
    first = leader._replace(stop=leader.start + _rows_that_fit(leader, room))
    batch, rest = [first], []
    for some, share in ((interactive, 1.0), (bulk, 1.0 if leader.entry.bulk else BULK_SHARE)):
        room.keep(share)
        for part in some:
            of_it = part.entry.key == key and room.may_take(part.stop - part.start)
            if of_it and room.takes(part.tokens, part.squares):
                batch.append(part)
            else:
                rest.append(part)
    if first.stop < leader.stop:
        rest.append(leader._replace(start=first.stop))
    return Formed(batch, rest, dropped)


def _bulk_leads(interactive: Sequence[Slice], bulk: Sequence[Slice], now: float, bulk_led: float) -> bool:
    if not interactive or not bulk:
        return not interactive
    first, stood_back = bulk[0].entry, interactive[0].entry.queued <= bulk_led
    turn = max(first.queued, bulk_led) + BULK_WAIT_S
    if first.deadline is not None:
        turn = min(turn, first.queued + (first.deadline - first.queued) / 2)
    return not stood_back and now >= turn


def _rows_that_fit(part: Slice, room: _Room) -> int:
    """Put as many of its rows into the room as fit, one at least."""
    for rows, length in enumerate(part.lengths):
        if not room.takes(length, length * length, always=rows == 0):
            return rows
    return len(part.lengths)
