"""uvicorn's HTTP protocol with one system call per answer instead of two, limits for what comes, and no lost bodies.

uvicorn writes the head of an answer and its body one after the other, and uvloop sends each at once: two packets, two
wakes of the caller. Here what is written in one turn of the event loop leaves together, and an answer's end at once.
uvicorn keeps headers in memory however long they are, and a connection however long nothing comes or is taken. And its
parser takes what follows a request with an ``Upgrade`` header for another protocol's, body and all; here an offer that
is not taken (``h2c``: every one but websockets') is as if it were not there (RFC 9110, 7.8). Owns nothing else of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sie_broker import http_refusals
from sie_sdk.errors import PayloadTooLargeError

log = logging.getLogger("sie.broker.http")

HEAD_BYTES = 64 * 1024
"""The longest request line with its headers, and the longest trailers."""
HEAD_S = 30.0
"""The longest time from a head's first byte to its last."""
STILL_S = 60.0
"""A body of which nothing comes for so long, and an answer of which nothing is taken, ends its connection."""
SLOW_BYTES = 256 * 1024
"""Who takes fewer bytes of an answer a second, from its beginning on, loses it when others need the memory. As they
leave this process: the kernel takes the first megabytes at once, which do not count, and then many at a time."""
SLOW_S = 10.0
"""But not before that time."""
LOOK_S = 10.0
"""How often these are looked for, so that a request costs neither timer nor clock; they may be so much longer."""
LARGE_BYTES = 64 * 1024
"""An answer of more is not copied to be joined."""

_behind: set[Protocol] = set()
"""The connections whose callers take less than they are sent."""


def unsent_bytes() -> int:
    """What was written to callers of this process and not taken yet, but for what any connection may have (64 KiB)."""
    return sum(connection.transport.get_write_buffer_size() for connection in _behind)


def make_room(size: int) -> None:
    """End connections whose callers take an answer too slowly, the slowest first, until these had ``size`` bytes to go.

    For when there is no memory: a slow caller is to cost itself an answer, and not all others theirs.
    """
    paces = [(pace, connection) for connection in _behind if (pace := connection.pace()) < SLOW_BYTES]
    for pace, connection in sorted(paces, key=lambda each: each[0]):
        if size <= 0:
            return
        log.warning("an answer taken at %d bytes a second is broken off: others need the memory", pace)
        size -= connection.transport.get_write_buffer_size()
        _behind.discard(connection)
        connection.transport.abort()


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
            if sum(map(len, written)) > LARGE_BYTES:
                self._transport.writelines(written)  # together, too, and nothing is copied
            else:
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
        self._running: RequestResponseCycle | None = None
        """What is being answered."""
        self._declined = self._heard = False
        self._patience_s: float | None = None  # outside of a request there is nothing to wait for
        self._progress, self._unsent = 0.0, 0
        self._behind_since, self._behind_by = 0.0, 0
        self._look = self.loop.call_later(LOOK_S, self._look_around)
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._look.cancel()
        _behind.discard(self)
        if (running := self._running) is not None:  # behind which another request may have come already
            running.disconnected = not running.response_complete
            running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """More is on the way than the caller takes."""
        self._behind_since, self._behind_by = self.loop.time(), self.transport.get_write_buffer_size()
        _behind.add(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        _behind.discard(self)
        super().resume_writing()

    def pace(self) -> float:
        """Bytes a second that the caller has taken since it is behind; after a moment alone nothing is said of it."""
        age_s = self.loop.time() - self._behind_since
        taken = self._behind_by - self.transport.get_write_buffer_size()
        return taken / age_s if age_s > SLOW_S else math.inf

    def data_received(self, data: bytes) -> None:
        """Take what came; of a head no more than it may have."""
        if self._in_head:
            head, data = data[: self._room], data[self._room :]
            self._room -= len(head)
            self._feed(head)
            if self._in_head and not self._room:
                self._refuse_head()
                return
        if data and not self.transport.is_closing():
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """As uvicorn does, but for offers of other protocols."""
        self._unset_keepalive_if_required()
        rest: bytes | memoryview = data
        while True:
            try:
                return self.parser.feed_data(rest)
            except httptools.HttpParserError:
                return self.send_400_response("Invalid HTTP request received.")
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self._look.cancel()  # what comes now is the other protocol's, its time and what it has on the way
                    _behind.discard(self)
                    return self.handle_websocket_upgrade()
                if not self._declined:
                    return None  # CONNECT, which is answered and has no body
                rest = memoryview(rest)[upgrade.args[0] :]
                self._read_head_again()

    def _should_upgrade(self) -> bool:
        # Websockets alone, and they begin with a GET.
        return self.parser.get_method() == b"GET" and super()._should_upgrade()

    def _read_head_again(self) -> None:
        """Read the head that came without its offer, in a parser of its own: the other one takes no body any more."""
        method, version, headers = self.parser.get_method(), self.parser.get_http_version(), self.headers
        lines = [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
        head = b"".join((method, b" ", self.url, b" HTTP/", version.encode(), b"\r\n", *lines, b"\r\n"))
        self._declined = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(head)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._patience_s, self._heard = HEAD_S, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A body follows, or the next head."""
        self._in_head, self._patience_s = False, STILL_S
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade():
            self._declined = True
            return
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A piece of the body follows; after the last there is none, but what may follow the body is like a head."""
        self._expect_head()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._in_head, self._heard = False, True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next head follows."""
        if self._declined:
            return
        self._expect_head()
        self._patience_s = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is whole and leaves before what else is to be done for it, and before others have their turn."""
        cast("Joined", self.transport).flush()
        super().on_response_complete()

    def _expect_head(self) -> None:
        self._in_head, self._room = True, HEAD_BYTES

    def _look_around(self) -> None:
        """End the connection where its caller has stopped in the middle; nobody who waits for an answer is cut."""
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        taken, heard, self._unsent, self._heard = unsent != self._unsent, self._heard, unsent, False
        if taken if unsent else heard or self.flow.read_paused:
            self._progress = now
        elif now - self._progress >= (STILL_S if unsent else self._patience_s or math.inf):
            self.transport.abort()
        self._look = self.loop.call_later(LOOK_S, self._look_around)

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
