"""A parcel: one message of the two small queues, of results due at sinks and of events that came in.

Owns what it is to whoever has it in hand, how many are, and the one of the in-memory broker. That on NATS is in
``jetstream.parcels``; what becomes of a parcel stands in ``events.sinks`` and in the ingress.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from sie_broker.ending import end
from sie_broker.room import Room
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.broker.parcels")

ACK_WAIT_S = 30.0
"""How long whoever has taken one may take over it."""
DRAIN_S = 3.0
"""How long what is in hand may take at the end; what is not done then comes to another, or again."""

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


async def work_off(
    take: Callable[[Room], AsyncGenerator[Parcel, None]], settle: Callable[[Parcel], Awaitable[None]], in_hand: int
) -> None:
    """Settle what comes until cancelled, at most ``in_hand`` at a time.

    A parcel whose settling fails is delivered again, to whomever. It is given back: in memory nobody else misses it.
    """
    room, tasks = Room(in_hand), set[asyncio.Task[None]]()

    async def again(parcel: Parcel) -> None:
        with suppress(SIEError):  # then the server delivers it again by itself
            await parcel.nak(ACK_WAIT_S)

    async def one(parcel: Parcel) -> None:
        try:
            await settle(parcel)
        except SIEError as error:
            log.warning("%s waits for its next delivery: %s", parcel.subject, error)
            await again(parcel)
        except Exception:
            log.exception("%s waits for its next delivery", parcel.subject)
            await again(parcel)
        finally:
            room.leave()

    try:
        async with aclosing(take(room)) as parcels:
            async for parcel in parcels:
                # Taken here and not by the task, which may run only after the next look at the room.
                room.take()
                task = asyncio.create_task(one(parcel))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    finally:
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S)
        await end(*tasks)
