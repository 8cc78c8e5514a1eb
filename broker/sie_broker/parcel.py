"""A parcel: one message of the two small queues, of results due at sinks and of events that came in.

Owns what it is to whoever has it in hand, and the one of the in-memory broker. That on NATS is in ``parcels``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Protocol

_sequences = itertools.count(1)


class Parcel(Protocol):
    """In hand until a verb ends it."""

    @property
    def subject(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def data(self) -> bytes: ...
    @property
    def sequence(self) -> int:
        """Its place in its queue's stream."""
        ...

    @property
    def attempt(self) -> int:
        """1 the first time it is in hand."""
        ...

    @property
    def at(self) -> float:
        """When it was queued; seconds since the epoch."""
        ...

    async def ack(self) -> None: ...
    async def nak(self, delay: float) -> None:
        """Have it again after ``delay`` seconds, as often as it takes."""
        ...

    async def term(self, reason: str) -> None: ...


class MemoryParcel:
    """A result that is due at a sink, in the queue ``due`` of one process."""

    def __init__(self, due: asyncio.Queue[MemoryParcel], subject: str, headers: Mapping[str, str], data: bytes) -> None:
        self._due = due
        self.subject = subject
        self.headers = headers
        self.data = data
        self.sequence = next(_sequences)
        self.attempt = 1
        self.at = time.time()
        self._settled = False

    async def ack(self) -> None:
        """It is in no queue any more."""
        self._settled = True

    async def nak(self, delay: float) -> None:
        if not self._settled:  # as on NATS only the first verb counts
            self._settled = True
            asyncio.get_running_loop().call_later(delay, self._deliver_again)

    async def term(self, reason: str) -> None:
        """It is in no queue any more."""
        self._settled = True

    def _deliver_again(self) -> None:
        self.attempt += 1
        self._settled = False
        self._due.put_nowait(self)
