"""Parcels: messages of the two small queues on NATS, results due at sinks and events that came in.

Owns how they are taken and settled, and how many are in hand. Streams are declared in ``streams``; what becomes of a
parcel stands in ``sinks`` and in the ingress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress

from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker.contract import Room
from sie_broker.ending import end
from sie_broker.jetstream import streams
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.pull import Link, pull
from sie_broker.parcel import Parcel
from sie_broker.room import Room as Places
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.broker.parcels")

DRAIN_S = 3.0
"""How long what is in hand may take at the end; what is not done then comes to another, or again."""


class NatsParcel:
    """A `Parcel` from JetStream."""

    def __init__(self, nc: Client, message: Msg) -> None:
        found = message.metadata
        self._nc = nc
        self._message = message
        self.sequence = found.sequence.stream
        self.attempt = found.num_delivered or 1
        self.at = found.timestamp.timestamp()

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    @property
    def data(self) -> bytes:
        return self._message.data

    async def ack(self) -> None:
        await self._settle("+ACK")

    async def nak(self, delay: float) -> None:
        await self._settle(f'-NAK {{"delay": {int(delay * streams.NANO)}}}')

    async def term(self, reason: str) -> None:
        await self._settle(f"+TERM {reason}")

    async def _settle(self, verb: str) -> None:
        with translated():
            await self._nc.publish(self._message.reply, verb.encode())


async def parcels(nc: Client, queue: str, room: Room, link: Link) -> AsyncGenerator[Parcel, None]:
    """Take from the stream ``queue`` until closed; any number of processes share it."""
    async with aclosing(pull(nc, queue, queue, room, lambda: 0, link)) as messages:
        async for message in messages:
            yield NatsParcel(nc, message)


async def work_off(
    take: Callable[[Room], AsyncGenerator[Parcel, None]], settle: Callable[[Parcel], Awaitable[None]], in_hand: int
) -> None:
    """Settle what comes until cancelled, at most ``in_hand`` at a time.

    A parcel whose settling fails is delivered again, to whomever. It is given back: in memory nobody else misses it.
    """
    room, tasks = Places(in_hand), set[asyncio.Task[None]]()

    async def again(parcel: Parcel) -> None:
        with suppress(SIEError):  # then the server delivers it again by itself
            await parcel.nak(streams.QUEUE_ACK_WAIT_S)

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
