"""nats-py's client, made to outlive any one message: what nats-py lets end a connection for good is stopped before it.

Owns what may be sent, what can be read, and how an answer is waited for. A server closes the connection that sends it
too much, headers counted, and nats-py counts the body alone and does not connect again; a message whose headers or
subject it cannot decode ends its reading.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from nats.aio.client import Client

from sie_sdk.errors import PayloadTooLargeError

T = TypeVar("T")

_AROUND = len(b"NATS/1.0\r\n\r\n")
_BETWEEN = len(b": \r\n")


async def _wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    async with asyncio.timeout(timeout):
        return await awaitable


if sys.version_info < (3, 12):
    # nats-py waits for every answer with it. Before Python 3.12 it takes an answer that comes together with a
    # cancellation and forgets the cancellation, so that who was told to end goes on; this is what it is from then on.
    asyncio.wait_for = _wait_for  # type: ignore[assignment]


def size_of(headers: Mapping[str, str] | None, body: bytes) -> int:
    """Bytes of a message as a server counts them."""
    if not headers:
        return len(body)
    lines = sum(len(name) + _bytes(value) + _BETWEEN for name, value in headers.items())
    return _AROUND + lines + len(body)


def _bytes(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


class NatsClient(Client):
    """One connection."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message.

        Raises:
            PayloadTooLargeError: the server would not have it.
        """
        if (size := size_of(headers, payload)) > self.max_payload:
            raise PayloadTooLargeError(
                f"{size} bytes are no message.",
                field="data" if 2 * len(payload) > size else "headers",
                limit=self.max_payload,
            )
        await super().publish(subject, payload, reply, headers)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if not subject.isascii():
            subject = subject.decode(errors="replace").encode()
        await super()._process_msg(sid, subject, reply, data, headers)

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (UnicodeDecodeError, IndexError):
            return None  # a message without headers, of which its reader makes what it can
