"""The pull client: takes work from one JetStream consumer, one outstanding request at a time.

Written here because nats-py's fetch knows no priority groups, and a cancelled fetch leaves a live pull whose message is
then lost until ``ack_wait``. Closing this generator drains the inbox and gives back what arrived meanwhile.
Owns how much is asked for: a little while a queue rests, and what the room of all pulls has left while it is busy.
Protocol: JetStream ADR-13 (pull), ADR-42 (priority groups); status 100 is a heartbeat, 404/408/409 end a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from sie_broker.contract import Room
from sie_broker.jetstream.connection import unsubscribe
from sie_broker.jetstream.streams import NANO, PULL_GROUP

log = logging.getLogger("sie.broker.pull")

STANDING = {True: 4, False: 1}
"""How many a pull asks for while nothing is known to wait, by whether its rank is 0. One for a model that is not held,
whose next work a worker that does hold it should have; more for one that is, so that a few that come together find it
asking. No place is set aside for these: a worker's hands may hold its room, and so much for each of its pulls."""
STANDING_S = 30.0
"""How long such an ask stands."""
BUSY_S = 1.0
"""How long any other stands. It has places of the room, which are then free for others again."""
MOST = 256
HEARTBEAT_S = 5.0
LATE_S = 2.0
"""How much later than its end a request that has no heartbeats is given up."""
SETTLED_S = 0.25
"""By then the server has surely seen a request. Leaving sooner is a race: it may still send a message to nobody, which
then waits for the whole ``ack_wait``."""


LOST = "lost"
"""Instead of a status: no answer will come to this request."""


async def nothing() -> None:
    """What a sign of a lost server leads to, unless somebody wants to know."""


class Link:
    """The connection as its pulls see it: whether it is up, and how often it was lost, and their requests with it."""

    def __init__(self) -> None:
        self.troubled: Callable[[], Awaitable[None]] = nothing
        """Called at every sign that a server was lost: of a cluster it may be another than ours."""
        self.up = asyncio.Event()
        self.up.set()
        self.losses = 0
        self.pulls: set[asyncio.Queue[Msg | int]] = set()

    def lost(self) -> None:
        """The connection is gone; nothing is asked for until it is `back`."""
        self.losses += 1
        self.up.clear()

    def back(self) -> None:
        """It is up again. Every pull is told: waiting for missed heartbeats would cost ten seconds."""
        self.up.set()
        for arrived in self.pulls:
            arrived.put_nowait(self.losses)


class Ask(msgspec.Struct):
    """One request: ``count`` messages, within ``stands_s`` seconds. ``reserved``: whether places are set aside."""

    count: int
    stands_s: float
    reserved: bool
    arrived: int = 0
    waiting: int = 0
    """Messages behind the last that arrived."""
    lost: bool = False
    """Given up without the server's word; it may still answer."""

    def busy(self, took_s: float) -> int:
        """How many to ask for next, since it may be known that some wait; 0: whatever comes, whenever."""
        if took_s <= BUSY_S and self.arrived == self.count:
            return min(MOST, max(2 * self.count, self.waiting))
        return min(MOST, self.arrived if self.reserved else self.waiting)


async def pull(
    nc: Client, stream: str, consumer: str, room: Room, rank: Callable[[], int], link: Link
) -> AsyncGenerator[Msg, None]:
    """Yield messages until closed, as ``room`` allows; who takes a message fills its place before the next is due."""
    inbox = nc.new_inbox()
    arrived: asyncio.Queue[Msg | int] = asyncio.Queue()
    link.pulls.add(arrived)
    subscription = await nc.subscribe(inbox, cb=arrived.put)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    asked, wanted = -SETTLED_S, 0
    try:
        while True:
            await link.up.wait()
            ask = await _next_ask(room, rank(), wanted)
            asked, losses = time.monotonic(), link.losses
            try:
                if link.up.is_set() and await _send(nc, subject, inbox, ask, rank()):
                    async with aclosing(_answers(arrived, ask, link, losses)) as messages:
                        async for message in messages:
                            if ask.reserved:
                                room.release(1)
                            yield message
            finally:
                if ask.reserved:
                    room.release(ask.count - ask.arrived)
            wanted = ask.busy(time.monotonic() - asked)
            if ask.lost:
                # What still came of it would wait here without a lease until the next request. Without anybody at its
                # inbox the server forgets it.
                left, inbox = subscription, nc.new_inbox()
                subscription = await nc.subscribe(inbox, cb=arrived.put)
                await unsubscribe(nc, left)
                await _nak(arrived)
    finally:
        link.pulls.discard(arrived)
        await asyncio.sleep(max(0.0, asked + SETTLED_S - time.monotonic()))
        await _give_back(nc, subscription, arrived)


async def _next_ask(room: Room, rank: int, wanted: int) -> Ask:
    if wanted:
        return Ask(await room.reserve(wanted), BUSY_S, reserved=True)
    await room.wait()
    return Ask(min(room.free, STANDING[rank == 0]), STANDING_S, reserved=False)


async def _answers(arrived: asyncio.Queue[Msg | int], ask: Ask, link: Link, losses: int) -> AsyncGenerator[Msg, None]:
    """What comes of one request, sent after so many losses of the link, until it is filled or over."""
    while ask.arrived < ask.count:
        message = await _next(arrived, ask.stands_s, losses)
        status = LOST if message is None else _status(message)
        if message is not None and status is None:
            ask.arrived += 1
            ask.waiting = message.metadata.num_pending or 0
            yield message
        elif status in ("404", "408"):
            return
        elif status != "100":
            # Leader change, consumer not there yet, server gone: ask again, but do not spin.
            ask.lost = status == LOST
            await link.troubled()
            await asyncio.sleep(0.2)
            return


async def _send(nc: Client, subject: str, inbox: str, ask: Ask, rank: int) -> bool:
    request: dict[str, object] = {
        "batch": ask.count,
        "expires": int(ask.stands_s * NANO),
        "group": PULL_GROUP,
        "priority": rank,
    }
    if ask.stands_s > 2 * HEARTBEAT_S:
        request["idle_heartbeat"] = int(HEARTBEAT_S * NANO)
    try:
        await nc.publish(subject, msgspec.json.encode(request), reply=inbox)
    except NatsError:
        await asyncio.sleep(0.2)  # reconnecting with a full buffer
        return False
    return True


async def _next(arrived: asyncio.Queue[Msg | int], stands_s: float, losses: int) -> Msg | None:
    """The next message; None when the request was lost: with the link, or its end or two heartbeats were missed."""
    while not arrived.empty():  # so for all but the first of many, and a timer for each would cost more than the rest
        if not isinstance(message := arrived.get_nowait(), int):
            return message
        if message > losses:
            return None
    try:
        # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that coincides with a result.
        async with asyncio.timeout(min(2 * HEARTBEAT_S, stands_s + LATE_S)):
            while isinstance(message := await arrived.get(), int):
                if message > losses:
                    return None
            return message
    except TimeoutError:
        return None


def _status(message: Msg) -> str | None:
    """The server's own word instead of a message. What is to be acknowledged is one, whatever its headers say."""
    return None if message.headers is None or message.reply else message.headers.get("Status")


async def _give_back(nc: Client, subscription: Subscription, arrived: asyncio.Queue[Msg | int]) -> None:
    if not nc.is_connected:  # what it has sent is lost with the connection
        await unsubscribe(nc, subscription)
        return
    await asyncio.shield(subscription.drain())  # type: ignore[no-untyped-call]  # nats-py
    await _nak(arrived)


async def _nak(arrived: asyncio.Queue[Msg | int]) -> None:
    while not arrived.empty():
        message = arrived.get_nowait()
        if isinstance(message, Msg) and _status(message) is None:
            await message.nak()
