"""The calls of a stream: one for each chunk of its items, and what the items raise in its place among them.

Not here: how items are cut (``chunks``), what a call does (``calls``), how many are under way (``drivers``).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from sie_sdk import chunks
from sie_sdk.chunks import Chunk
from sie_sdk.effects import Call
from sie_sdk.keywords import One

T = TypeVar("T")


def each(ask: Callable[[Chunk], Call[T]], items: Iterable[One]) -> Iterator[Call[T]]:
    """The calls for items, a chunk each, as they are needed. What the items raise is raised by the last one.

    A call has its place among the results, so that those before it are given out first, however many are under way.
    """
    try:
        for chunk in chunks.each(items):
            yield ask(chunk)
    except Exception as error:
        yield _failing(error)


async def each_awaited(
    ask: Callable[[Chunk], Call[T]], items: AsyncIterable[One] | Iterable[One]
) -> AsyncIterator[Call[T]]:
    """:func:`each`, of items that are awaited, or not."""
    try:
        async for chunk in chunks.each_awaited(items):
            yield ask(chunk)
    except Exception as error:
        yield _failing(error)


def _failing(error: Exception) -> Call[Any]:
    raise error
    yield  # what makes it a call
