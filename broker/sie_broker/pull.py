"""The pull client: takes work from one JetStream consumer, one outstanding request at a time.

Written here because nats-py's fetch knows no priority groups, and a cancelled fetch leaves a live pull whose message is
then lost until ``ack_wait``. Closing this generator drains the inbox and gives back what arrived meanwhile.
Protocol: JetStream ADR-13 (pull), ADR-42 (priority groups); status 100 is a heartbeat, 404/408/409 end a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sie_broker.contract import Room
from sie_broker.streams import NANO, PULL_GROUP

log = logging.getLogger("sie.broker.pull")

EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
SETTLED_S = 0.25
"""By then the server has surely seen a request. Leaving sooner is a race: it may still send a message to nobody, which
then waits for the whole ``ack_wait``."""


Interrupt = Callable[[], None]
"""Tells a pull that the connection was lost and is back: its request went with it."""


async def pull(
    nc: Client, stream: str, consumer: str, room: Room, rank: Callable[[], int], interrupts: set[Interrupt]
) -> AsyncGenerator[Msg, None]:
    """Yield messages until closed; at most ``room.free`` are asked for at once.

    While it runs, its `Interrupt` is in ``interrupts``: waiting for missed heartbeats would cost ten seconds.
    """
    inbox = nc.new_inbox()
    arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

    def interrupt() -> None:
        arrived.put_nowait(None)

    interrupts.add(interrupt)
    subscription = await nc.subscribe(inbox, cb=arrived.put)
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    asked = -SETTLED_S
    try:
        while True:
            await room.wait()
            owed = min(room.free, 256)
            asked = time.monotonic()
            if not await _ask(nc, subject, inbox, owed, rank()):
                continue
            while owed > 0:
                message = await _next(arrived)
                status = "408" if message is None else _status(message)
                if message is not None and status is None:
                    owed -= 1
                    yield message
                elif status in ("404", "408"):
                    break
                elif status != "100":
                    # Leader change, consumer not there yet, server gone: ask again, but do not spin.
                    await asyncio.sleep(0.2)
                    break
    finally:
        interrupts.discard(interrupt)
        await asyncio.sleep(max(0.0, asked + SETTLED_S - time.monotonic()))
        await _give_back(nc, subscription.drain, arrived)


async def _ask(nc: Client, subject: str, inbox: str, batch: int, rank: int) -> bool:
    request = {
        "batch": batch,
        "expires": int(EXPIRES_S * NANO),
        "idle_heartbeat": int(HEARTBEAT_S * NANO),
        "group": PULL_GROUP,
        "priority": rank,
    }
    try:
        await nc.publish(subject, msgspec.json.encode(request), reply=inbox)
    except NatsError:
        await asyncio.sleep(0.2)  # reconnecting with a full buffer
        return False
    return True


async def _next(arrived: asyncio.Queue[Msg | None]) -> Msg | None:
    """The next message; None when interrupted, or after two missed heartbeats: the request was lost."""
    try:
        # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that coincides with a result.
        async with asyncio.timeout(2 * HEARTBEAT_S):
            return await arrived.get()
    except TimeoutError:
        return None


def _status(message: Msg) -> str | None:
    return None if message.headers is None else message.headers.get("Status")


async def _give_back(nc: Client, drain: Callable[[], object], arrived: asyncio.Queue[Msg | None]) -> None:
    if not nc.is_connected:
        return
    result = drain()
    if asyncio.iscoroutine(result):
        await asyncio.shield(result)
    while not arrived.empty():
        message = arrived.get_nowait()
        if message is not None and _status(message) is None:
            await message.nak()
