"""Where a step of a request is done: on the event loop, or in a pool of threads beside it.

What takes less than a hop to another thread and back is done at once, by what it is that has to be done: bytes read,
texts tokenized, outputs written. Owns these limits, and that a thread ends when nobody waits for it any more. Not here:
which steps there are (``operation``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor as Threads
from typing import TypeVar

from sie_broker import clock
from sie_broker.records import Work
from sie_bundle.engine.failure import tellably
from sie_bundle.engine.outputs import Outputs, SparseRow
from sie_bundle.models.plain_text import PlainText
from sie_bundle.models.spread import as_long_as
from sie_sdk.errors import DeadlineExceededError
from sie_sdk.types import Priority

T = TypeVar("T")

LATE = "The deadline passed while texts were tokenized."

INLINE_ITEMS = 32
"""Items of a request, and rows of a plan, that may be dealt with on the event loop: each takes its time, however small
it is."""

INLINE_BODY_BYTES = 256 * 1024
"""Bodies up to this size are parsed without leaving the event loop."""

INLINE_BYTES = 4096
"""Requests up to this size, with what stands beside each of their texts, are tokenized there: some 0.2 ms at most."""

INLINE_OUTPUT_BYTES = 64 * 1024
"""Outputs up to this size become a reply there: sixteen vectors of 1024 numbers."""

QUICK_INLINE_BYTES = 16_384
"""Tokenized there where a tokenizer is quick (`PlainText.quick`): what a thread did would not be done beside."""

COMPILED_TIMES = 12
"""So many times as large may a request be that compiled code reads, in half a millisecond."""

GPU_INLINE_BYTES = 512
"""Tokenized there beside a GPU: cores have nothing else to do, and the event loop is what everybody waits for."""


class Aside:
    """Runs steps. ``threads``: each class of work has its own, so that no interactive request waits for bulk ones."""

    def __init__(self, threads: Mapping[Priority, Threads]) -> None:
        self._threads = threads

    async def __call__(self, work: Work, small: bool, step: Callable[[], T]) -> T:
        """What ``step`` returns: at once if it is ``small``, else from a thread.

        Raises:
            DeadlineExceededError: that of ``work`` passed while texts were tokenized.
        """
        if small:
            return tellably(step)
        left = threading.Event()

        def wanted() -> None:
            if left.is_set() or (work.deadline is not None and clock.now() > work.deadline):
                raise DeadlineExceededError(LATE)

        def unless_late() -> T:
            with as_long_as(wanted):
                return tellably(step)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads[work.priority], unless_late)
        finally:
            left.set()  # a thread does not hear that its caller was cancelled


def parsed_at_once(size: int) -> bool:
    """Whether a body of so many bytes is parsed on the event loop."""
    return size <= INLINE_BODY_BYTES


def bytes_read_at_once(inline_bytes: int, plain: PlainText | None, *, bulk: bool) -> int:
    """Bytes of a request, with what stands beside each of its texts, that are tokenized on the event loop."""
    if bulk or plain is None or not plain.quick:
        return inline_bytes
    return max(inline_bytes * (COMPILED_TIMES if plain.compiled else 1), QUICK_INLINE_BYTES)


def written_at_once(rows: int, outputs: Iterable[Outputs]) -> bool:
    """Whether these outputs of so many rows become a reply on the event loop."""
    return rows <= INLINE_ITEMS and sum(map(_bytes_of, outputs)) <= INLINE_OUTPUT_BYTES


def _bytes_of(rows: Outputs) -> int:
    if not isinstance(rows, list):
        return rows.nbytes
    return sum(row.indices.nbytes + row.values.nbytes if isinstance(row, SparseRow) else row.nbytes for row in rows)
