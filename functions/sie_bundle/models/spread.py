"""Many texts are tokenized by several threads, as long as there are cores on which nobody tokenizes.

Owns how many threads a list of texts takes. The tokenizers library has threads of its own for that, and they are off:
a request goes through them even where it is alone on its core, and where many ask at once they are more than there are
cores. What that is worth is measured in ``docs/engine.md``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sie_bundle.engine import cores

T = TypeVar("T")

PART = 16_384
"""Characters that are worth a thread of their own: some 4 ms."""
MOST = 16
"""Threads at most, however many cores there are: beyond, Python is what is waited for."""

# Read by the library at each call. Whoever sets it means it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Spread:
    """Does something to every text of a list, on ``count`` cores at most in all, whoever calls."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._threads = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="tokenize")

    def __call__(self, each: Callable[[Sequence[Any]], list[T]], texts: Sequence[Any]) -> list[T]:
        """What ``each`` makes of the texts, one result per text in their order; it is called
        with all of them, or with some at a time in several threads at once.

        Raises:
            Exception: what ``each`` raises; the first that did.
        """
        taken = self._take(max(1, min(len(texts), sum(map(len, texts)) // PART)))
        try:
            if taken < 2:
                return each(texts)
            others = [self._threads.submit(each, texts[part::taken]) for part in range(1, taken)]
            made: list[Any] = [None] * len(texts)
            made[::taken] = each(texts[::taken])
            for part, other in enumerate(others, 1):
                made[part::taken] = other.result()
            return made
        finally:
            if taken:
                self._free.release(taken)

    def _take(self, wanted: int) -> int:
        """So many cores, or what there is of them; the caller's own may be none of those."""
        taken = 0
        while taken < wanted and self._free.acquire(blocking=False):
            taken += 1
        return taken


spread = Spread(min(MOST, cores.available()))
"""Of this process."""
