"""More items than one request should hold: cut into chunks, and their results made one. Pure.

Owns how large a chunk is, the places of its items in the whole, and what a caller is told of all chunks together. Not
here: sending them (``calls``), many at a time (``drivers``).
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from sie_sdk.errors import SIEError
from sie_sdk.types import Item, Operation, PairUsage, Progress, ScoreEntry, ScoreResult

ITEMS = 256
"""At most this many items in a chunk: what the server's parts hold, so that it passes a chunk on as one. Measured: what
a text costs the client falls up to here (10 us at 64 in a chunk, 6 at 256) and no further."""
BYTES = 1024 * 1024
"""At most this many characters and bytes of vectors in a chunk, likewise, unless a single item has more."""

_PLACE = re.compile(r"\bitems\[(\d+)\]")


class Chunk(msgspec.Struct, frozen=True):
    """Some of the items: those from ``start`` on, counted in the whole."""

    start: int
    items: Sequence[Item | str]

    @property
    def stop(self) -> int:
        return self.start + len(self.items)

    @property
    def named(self) -> Sequence[Item | str]:
        """The items, each with an id: one without is known by its place, which the server counts from the chunk's."""
        return [_named(item, place) for place, item in enumerate(self.items, self.start)]


class Cutter:
    """Takes items one by one and gives out chunks, each as soon as it is known to be full."""

    def __init__(self, most: int = ITEMS, size: int = BYTES) -> None:
        self._most = most
        self._most_size = size
        self._start = self._size = 0
        self._items: list[Item | str] = []

    def add(self, item: Item | str) -> Chunk | None:
        """Take one; the chunk before it, if that has no room for it."""
        size = _size(item)
        full = self.rest() if len(self._items) == self._most or self._size + size > self._most_size else None
        self._items.append(item)
        self._size += size
        return full

    def rest(self) -> Chunk | None:
        """What is left, if anything."""
        if not self._items:
            return None
        chunk = Chunk(self._start, self._items)
        self._start, self._size, self._items = chunk.stop, 0, []
        return chunk


def cut(items: Sequence[Item | str], most: int = ITEMS, size: int = BYTES) -> list[Chunk]:
    """All of a list, in chunks of about the same number of items: at most ``most``, of at most ``size``."""
    if len(items) <= most and sum(map(_size, items)) <= size:
        return [Chunk(0, items)]
    return [*each(items, -(-len(items) // -(-len(items) // most)), size)]


def each(items: Iterable[Item | str], most: int = ITEMS, size: int = BYTES) -> Iterator[Chunk]:
    """The chunks of items that come one by one; only the one being filled is held.

    What the items raise comes after the chunk of those before: they are good, and may be what a file had for hours.
    """
    cutter = Cutter(most, size)
    try:
        for item in items:
            if chunk := cutter.add(item):
                yield chunk
    except Exception:
        if chunk := cutter.rest():
            yield chunk
        raise
    if chunk := cutter.rest():
        yield chunk


async def each_awaited(items: AsyncIterable[Item | str] | Iterable[Item | str]) -> AsyncIterator[Chunk]:
    """:func:`each`, of items that are awaited, or not."""
    if not isinstance(items, AsyncIterable):
        for chunk in each(items):
            yield chunk
        return
    cutter = Cutter()
    try:
        async for item in items:
            if full := cutter.add(item):
                yield full
    except Exception:
        if rest := cutter.rest():
            yield rest
        raise
    if rest := cutter.rest():
        yield rest


def _size(item: Item | str) -> int:
    if isinstance(item, str):
        return len(item)
    if not isinstance(item, Item):
        return 0  # refused when the chunk is sent
    size = sum(len(each) for each in (item.text, item.id) if isinstance(each, str))  # others: likewise
    size += len(str(item.metadata)) if item.metadata else 0
    return size if item.multivector is None else size + getattr(item.multivector, "nbytes", 0)


def _named(item: Item | str, place: int) -> Item | str:
    if isinstance(item, str):
        return Item(text=item, id=f"item-{place}")
    if isinstance(item, Item) and item.id is None:
        return msgspec.structs.replace(item, id=f"item-{place}")
    return item


def place(error: SIEError, start: int, stop: int) -> None:
    """Make the error of a chunk one of the whole: ``items[i]`` counts from the first item of all.

    ``details["items"]`` is ``[start, stop]``: what is concerned is ``items[start:stop]``.
    """

    def shifted(text: str) -> str:
        return _PLACE.sub(lambda at: f"items[{int(at[1]) + start}]", text)

    error.message = shifted(error.message)
    error.field = error.field and shifted(error.field)
    error.details["items"] = [start, stop]


def merged(operation: Operation, results: Sequence[Any]) -> Any:
    """One result of all chunks' results: lists are joined; scores are ranked anew, with the slowest chunk's timing."""
    if operation != "score":
        return [result for results_of_one in results for result in results_of_one]
    scored: Sequence[ScoreResult] = results
    starts = accumulate((len(result.scores) for result in scored), initial=0)
    entries = [
        entry if entry.index < 0 else msgspec.structs.replace(entry, index=entry.index + start)
        for result, start in zip(scored, starts, strict=False)
        for entry in result.scores
    ]
    used = [result.usage for result in scored if result.usage]
    timings = [result.timing for result in scored if result.timing]
    return msgspec.structs.replace(
        scored[0],
        scores=ranked(entries),
        usage=PairUsage(sum(one.input_tokens for one in used), sum(one.pairs for one in used)) if used else None,
        timing=max(timings, key=lambda timing: timing.total_ms, default=None),
    )


class Tally:
    """What the progress of chunks is in the whole of ``total`` items, which may be unknown."""

    def __init__(self, total: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._done = 0
        self._total = total
        self._now = now
        self._started = now()

    def __call__(self, progress: Progress) -> Progress:
        self._done += progress.done
        last = progress.state != "done" or self._done == self._total
        return msgspec.structs.replace(
            progress,
            state=progress.state if last else "running",
            done=self._done,
            total=self._total,
            elapsed_s=self._now() - self._started,
        )


def ranked(entries: Iterable[ScoreEntry]) -> list[ScoreEntry]:
    """The entries best first, equal scores by ``index``, with their ranks counted anew."""
    ordered = sorted(entries, key=lambda entry: (-entry.score, entry.index))
    return [ScoreEntry(entry.item_id, entry.score, rank, entry.index) for rank, entry in enumerate(ordered)]
