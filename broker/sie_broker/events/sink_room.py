"""The memory of who sends results to sinks: how much may be in hand, in all and for one host.

Owns these limits. What is sent, and when again, is ``sinks``'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

LARGE_BYTES = 4 << 20
"""Results above that are sent one at a time, and kept beside their dead letters."""
SMALL_BYTES, HOST_BYTES = 8 << 20, 2 << 20
"""What all others in hand take together, and those for one host, of which one may always be in hand."""
PIECE_BYTES = 256 << 10


class SinkRoom:
    """What is in hand. A host is "" where none is asked; sizes are bytes."""

    def __init__(self) -> None:
        self._bytes = {True: 0, False: 0}  # of what is large, and of all else
        self._for_host: Counter[str] = Counter()  # of all else

    def has(self, host: str, size: int) -> bool:
        """Whether there is room for a result of so many bytes."""
        if size > LARGE_BYTES:
            return not self._bytes[True]
        own = self._for_host[host]
        return self._bytes[False] + size <= SMALL_BYTES and (not own or own + size <= HOST_BYTES)

    @contextmanager
    def taken(self, host: str, size: int) -> Iterator[None]:
        """Hold it meanwhile."""
        large = size > LARGE_BYTES
        own = 0 if large else size
        self._bytes[large] += size
        self._for_host[host] += own
        try:
            yield
        finally:
            self._bytes[large] -= size
            self._for_host[host] -= own
            if not self._for_host[host]:
                del self._for_host[host]


async def pieces(body: bytes) -> AsyncGenerator[bytes, None]:
    """A body bit by bit: whole, it is copied once more on its way to the socket."""
    for at in range(0, len(body), PIECE_BYTES):
        yield body[at : at + PIECE_BYTES]
