"""The NATS protocol as it goes over the socket, without a client library: what a producer of any language writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Message(NamedTuple):
    """One message as it was delivered."""

    subject: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Wire:
    """One connection. Nothing reads ahead: `next_message` reads until a message has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._subscriptions = 0

    async def publish(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """One PUB, or one HPUB with headers."""
        to = f"{subject} {reply}".strip()
        if headers is None:
            await self._write(f"PUB {to} {len(body)}\r\n".encode() + body + b"\r\n")
            return
        lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        await self.publish_block(to.encode(), b"NATS/1.0\r\n" + lines + b"\r\n", body)

    async def publish_block(self, to: bytes, block: bytes, body: bytes) -> None:
        """One HPUB whose headers are these bytes, whatever they are; ``to``: the subject, and where to reply."""
        sizes = f"{len(block)} {len(block) + len(body)}".encode()
        await self._write(b"HPUB %b %b\r\n%b%b\r\n" % (to, sizes, block, body))

    async def subscribe(self, subject: str) -> None:
        """One SUB; what is published after this has returned is delivered."""
        self._subscriptions += 1
        await self._write(f"SUB {subject} {self._subscriptions}\r\nPING\r\n".encode())
        assert await self._line() == "PONG"

    async def next_message(self) -> Message:
        """The next message of any subscription."""
        async with asyncio.timeout(15):
            while True:
                verb, *rest = (await self._line()).split(" ")
                if verb == "PING":
                    await self._write(b"PONG\r\n")
                elif verb in ("MSG", "HMSG"):
                    payload = (await self._reader.readexactly(int(rest[-1]) + 2))[:-2]
                    cut = int(rest[-2]) if verb == "HMSG" else 0
                    lines = payload[:cut].decode().split("\r\n")[1:]
                    headers = dict(line.split(": ", 1) for line in lines if line)
                    return Message(rest[0], headers, payload[cut:])
                else:
                    assert verb in ("+OK", "PONG", "INFO"), verb

    async def request(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> Message:
        """Publish with an inbox of its own to reply to; the first reply."""
        await self.subscribe("_INBOX.wire.*")
        await self.publish(subject, body, headers, reply="_INBOX.wire.1")
        return await self.next_message()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _line(self) -> str:
        return (await self._reader.readuntil(b"\r\n")).decode().removesuffix("\r\n")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Wire]:
    """Connect to the server at ``url``."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        assert (await reader.readuntil(b"\r\n")).startswith(b"INFO ")
        writer.write(b'CONNECT {"verbose": false, "pedantic": true, "headers": true, "protocol": 1}\r\n')
        yield Wire(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
