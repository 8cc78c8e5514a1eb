"""Who hears what is told once in the in-memory broker. Owns the list of them; what is told is ``memory``'s."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Listeners(Generic[T]):
    """Those who listen now. One event loop only."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], None]] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def tell(self, what: T) -> None:
        """Tell everybody who listens."""
        for heard in list(self._listeners):
            heard(what)

    @asynccontextmanager
    async def listening(self, heard: Callable[[T], None]) -> AsyncIterator[None]:
        """Call ``heard`` for whatever is told while the context is open."""
        self._listeners.append(heard)
        try:
            yield
        finally:
            self._listeners.remove(heard)
