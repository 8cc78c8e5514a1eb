"""Parcels: messages of the two small queues on NATS, results due at sinks and events that came in.

Owns how they come here, and what each verb tells the server. Streams are declared in ``streams``; how many are in hand
stands in ``sie_broker.parcel``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker.contract import Room
from sie_broker.jetstream import streams
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.pull import Link, pull
from sie_broker.parcel import Parcel


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
