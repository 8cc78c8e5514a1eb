"""uvicorn's HTTP protocol with one system call per answer instead of two.

uvicorn writes the head of an answer and its body one after the other, and uvloop sends each at once: two packets, two
wakes of the caller. Here what is written in one turn of the event loop leaves together. Owns nothing else of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Joined:
    """A transport whose writes of one turn of the loop leave as one; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send ``data`` with all that is written until the loop's next turn."""
        if not self._written:
            self._loop.call_soon(self.flush)
        self._written.append(data)

    def flush(self) -> None:
        """Send what was written; nothing when there is none."""
        if self._written:
            written, self._written = self._written, []
            self._transport.write(written[0] if len(written) == 1 else b"".join(written))

    def close(self) -> None:
        """Send what was written, then close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, behind `Joined`."""
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
