"""Many texts are tokenized by several threads, as long as there are cores on which nobody tokenizes.

Owns how many threads a list of texts takes, and that it ends early where nobody waits for it any more. The tokenizers
library has threads of its own, and they are off: a request goes through them even where it is alone on its core, and
where many ask at once they are more than there are cores. What that is worth is measured in ``docs/engine.md``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from sie_bundle.engine import cores

T = TypeVar("T")

PART = 16_384
"""Characters that are worth a thread of their own: some 4 ms."""
LOT = 65_536
"""Characters that are tokenized before it is looked again whether somebody still waits for them: some 20 ms."""
MOST = 16
"""Threads at most, however many cores there are: beyond, Python is what is waited for."""

# Read by the library at each call. Whoever sets it means it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


_wanted: ContextVar[Callable[[], None]] = ContextVar("wanted", default=lambda: None)


@contextmanager
def as_long_as(wanted: Callable[[], None]) -> Iterator[None]:
    """Let what this thread spreads end with what ``wanted`` raises, soon after it does. Asked by several threads."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


class Spread:
    """Does something to every text of a list, on ``count`` cores at most in all, whoever calls."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._threads = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="tokenize")

    def __call__(self, each: Callable[[Sequence[Any]], list[T]], texts: Sequence[Any]) -> list[T]:
        """What ``each`` makes of the texts, one result per text in their order; it is called
        with all of them, or with some at a time in several threads at once.

        Raises:
            Exception: what ``each`` raises; the first that did. Or what `as_long_as` was given.
        """
        others = list[Future[list[T]]]()
        part = partial(lot_by_lot, each, wanted=_wanted.get())

        taken = self._take(max(1, min(len(texts), sum(map(len, texts)) // PART)))
        try:
            if taken < 2:
                return part(texts)
            others += [self._threads.submit(part, texts[number::taken]) for number in range(1, taken)]
            made: list[Any] = [None] * len(texts)
            made[::taken] = part(texts[::taken])
            for number, other in enumerate(others, 1):
                made[number::taken] = other.result()
            return made
        finally:
            for other in others:
                other.cancel()  # one that has not begun is not wanted, where another failed
            if taken:
                self._free.release(taken)

    def _take(self, wanted: int) -> int:
        """So many cores, or what there is of them; the caller's own may be none of those."""
        taken = 0
        while taken < wanted and self._free.acquire(blocking=False):
            taken += 1
        return taken


def lot_by_lot(
    each: Callable[[Sequence[Any]], list[T]], texts: Sequence[Any], wanted: Callable[[], None] | None = None
) -> list[T]:
    """What ``each`` makes of the texts, on this thread alone; ends early as a spread does."""
    wanted = wanted or _wanted.get()
    made: list[T] = []
    for lot in _lots(texts):
        wanted()
        made += each(lot)
    return made


def _lots(texts: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The texts in order, as many at a time as have `LOT` characters, one at least."""
    start = size = 0
    for stop, text in enumerate(texts):
        if size >= LOT:
            yield texts[start:stop]
            start, size = stop, 0
        size += len(text)
    yield texts[start:] if start else texts


spread = Spread(min(MOST, cores.available()))
"""Of this process."""
