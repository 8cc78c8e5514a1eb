"""The NATS server's clock, which any process may ask: `sie_broker.clock` believes it where a machine's own is off."""

from __future__ import annotations

from datetime import datetime

import msgspec
from nats.aio.client import Client

from sie_broker.jetstream import streams
from sie_broker.jetstream.connection import translated
from sie_sdk.errors import QueueUnavailableError

ASKED = f"$JS.API.STREAM.INFO.KV_{streams.CONFIG}"
"""What every process may ask, and the server answers with its time."""


async def ask(nc: Client) -> float:
    """Its seconds since the epoch.

    Raises:
        QueueUnavailableError: it does not say, or there is no bucket yet.
    """
    with translated():
        answer = await nc.request(ASKED, b"", timeout=2)
    try:
        return datetime.fromisoformat(msgspec.json.decode(answer.data)["ts"]).timestamp()
    except (ValueError, KeyError) as fault:
        raise QueueUnavailableError("The broker does not tell its time.") from fault
