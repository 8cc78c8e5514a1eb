"""uvicorn's HTTP protocol with one system call per answer instead of two, and a limit for what comes before a body.

uvicorn writes the head of an answer and its body one after the other, and uvloop sends each at once: two packets, two
wakes of the caller. Here what is written in one turn of the event loop leaves together. And uvicorn keeps headers in
memory however long they are. Owns nothing else of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sie_broker import http_refusals
from sie_sdk.errors import PayloadTooLargeError

HEAD_BYTES = 64 * 1024
"""The longest request line with its headers, and the longest trailers."""


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
        self._expect_head()
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Take what came; of a head no more than it may have."""
        if self._in_head:
            head, data = data[: self._room], data[self._room :]
            self._room -= len(head)
            super().data_received(head)
            if self._in_head and not self._room:
                self._refuse_head()
                return
        if data and not self.transport.is_closing():
            super().data_received(data)

    def on_headers_complete(self) -> None:
        """A body follows, or the next head."""
        self._in_head = False
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A piece of the body follows; after the last there is none, but what may follow the body is like a head."""
        self._expect_head()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next head follows."""
        self._expect_head()
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._in_head, self._room = True, HEAD_BYTES

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else an answer is being written
            error = PayloadTooLargeError(
                f"The request's headers are over {HEAD_BYTES} bytes.", field="headers", limit=HEAD_BYTES
            )
            refused = http_refusals.refused(error)
            refused.headers["connection"] = "close"
            lines = b"".join(b"%b: %b\r\n" % header for header in refused.raw_headers)
            status = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
            self.transport.write(b"".join((status, lines, b"\r\n", refused.body)))
        self.transport.close()
