"""What workers tell each other when a server was lost: who has which work in hand, or has just settled it.

A killed server forgets the deliveries of its last moment, and acknowledgements on their way to it are lost with it. It,
or its successor, then gives that work to any worker. Whoever gets work of which another one told passes the delivery on
to it, and computes nothing. Owns what was told and by whom; what is done with a delivery is ``hands``'.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker.subjects import HANDS

log = logging.getLogger("sie.broker.peers")

MOST = 1024
"""How many works one worker tells of at most."""
TOLD_S = 120.0
"""How long it is believed; work comes again within a lease, or as soon as a server is back."""
APART_S = 1.0
"""The least between two announcements for signs of a loss."""
PASSED_ON_S = 1.0


class Place(NamedTuple):
    """One message of one stream, however often it is delivered. The time tells it from one of a stream made anew."""

    stream: str
    sequence: int
    stored_us: int


def place(message: Msg) -> Place:
    """Where a delivered message is stored."""
    found = message.metadata
    return Place(found.stream, found.sequence.stream, round(found.timestamp.timestamp() * 1e6))


class _Told(msgspec.Struct, array_like=True):
    owner: str
    places: list[Place]


class _Passed(msgspec.Struct, array_like=True):
    place: Place
    lease: str


_encoder = msgspec.msgpack.Encoder()
_told = msgspec.msgpack.Decoder(_Told)
_passed = msgspec.msgpack.Decoder(_Passed)

Taken = Callable[[Place, str], Awaitable[None]]
"""Takes a delivery that another worker got: where its message is stored, and the subject that its verbs go to."""


class Peers:
    """The other workers. ``own()``: what this one has to tell of; ``taken``: what it does with what they pass on."""

    def __init__(self, nc: Client, own: Callable[[], Iterable[Place]], taken: Taken) -> None:
        self._nc = nc
        self._inbox = nc.new_inbox()
        self._own = own
        self._taken = taken
        self._owners: dict[Place, tuple[str, float]] = {}
        self._told_at = -APART_S

    async def open(self) -> None:
        """Hear them."""
        await self._nc.subscribe(HANDS, cb=self._heard)
        await self._nc.subscribe(self._inbox, cb=self._given)

    async def tell(self) -> None:
        """Say what is ours: a server was lost."""
        self._told_at = time.monotonic()
        if places := list(itertools.islice(self._own(), MOST)):
            with suppress(nats.errors.Error):
                await self._nc.publish(HANDS, _encoder.encode(_Told(self._inbox, places)))

    async def tell_lately(self) -> None:
        """The same, unless it has been said a moment ago: one loss is noticed by every pull."""
        if time.monotonic() - self._told_at >= APART_S:
            await self.tell()

    async def pass_on(self, where: Place, lease: str) -> bool:
        """Give a delivery to the worker that told of it; False when none did, or it is not there any more."""
        owner, until = self._owners.pop(where, ("", 0.0))
        if until < time.monotonic():
            return False
        try:
            await self._nc.request(owner, _encoder.encode(_Passed(where, lease)), timeout=PASSED_ON_S)
        except (nats.errors.Error, TimeoutError):
            self._owners = {known: by for known, by in self._owners.items() if by[0] != owner}
            return False
        return True

    async def _heard(self, message: Msg) -> None:
        try:
            told = _told.decode(message.data)
        except msgspec.DecodeError as fault:
            log.warning("what a worker has in hand cannot be read: %s", fault)
            return
        if told.owner != self._inbox:
            until = time.monotonic() + TOLD_S
            self._owners |= dict.fromkeys(told.places, (told.owner, until))
            asyncio.get_running_loop().call_later(TOLD_S + 1, self._forget_older)

    def _forget_older(self) -> None:
        now = time.monotonic()
        self._owners = {known: by for known, by in self._owners.items() if by[1] >= now}

    async def _given(self, message: Msg) -> None:
        try:
            passed = _passed.decode(message.data)
        except msgspec.DecodeError as fault:
            log.warning("what a worker passes on cannot be read: %s", fault)
            return
        await self._taken(passed.place, passed.lease)
        with suppress(nats.errors.Error):
            await message.respond(b"")
