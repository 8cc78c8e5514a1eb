"""What is told by a subject alone, and may be lost: heard here. What each one means is ``nats_broker``'s."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker.jetstream.connection import translated, unsubscribe


@asynccontextmanager
async def listening(nc: Client, subject: str, heard: Callable[[str], None]) -> AsyncIterator[None]:
    """Call ``heard`` with the subject of every message there while the context is open.

    It raises ValueError at one that is not ours, which is passed over.
    """

    async def on_message(message: Msg) -> None:
        with suppress(ValueError):
            heard(message.subject)

    with translated():
        subscription = await nc.subscribe(subject, cb=on_message)
    try:
        yield
    finally:
        await unsubscribe(nc, subscription)
