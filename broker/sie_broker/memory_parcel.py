"""A result that is due at a sink, in the broker of one process; the queue of them is the broker's (``memory``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping


class MemoryParcel:
    """A `Parcel` of the in-memory broker: a result that is due at a sink."""

    def __init__(self, due: asyncio.Queue[MemoryParcel], subject: str, headers: Mapping[str, str], data: bytes) -> None:
        self._due = due
        self.subject = subject
        self.headers = headers
        self.data = data
        self.sequence = 0
        self.attempt = 1
        self.at = time.time()

    async def ack(self) -> None:
        """It is in no queue any more."""

    async def nak(self, delay: float) -> None:
        self.attempt += 1
        asyncio.get_running_loop().call_later(delay, self._due.put_nowait, self)

    async def term(self, reason: str) -> None:
        """It is in no queue any more."""
