"""The load generator: N clients on keep-alive connections, each with its next request as soon as it has its answer.

Requests are bytes made beforehand and answers are only counted, so that a request costs tens of microseconds here and
the server is what is measured. HTTP/1.1 with ``Content-Length``; anything else is an error.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import uvloop

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

PATIENCE_S = 60.0
"""How long after the end of a slice its last answers may take."""


class Request(NamedTuple):
    """The bytes of a whole HTTP request, and how many texts it holds."""

    data: bytes
    items: int


class Slice(NamedTuple):
    """One slice: texts answered, seconds from the first question to the last answer, each request's own seconds."""

    items: float
    seconds: float
    latencies: list[float]


class LoadError(RuntimeError):
    """The server answered something other than 200, or hung up."""


def post(path: str, body: bytes, content_type: str) -> bytes:
    """The bytes of a POST request whose answer is wanted in the same format."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nAccept: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def drive(port: int, requests: Iterator[Request], clients: int, seconds: float, status: int = 200) -> Slice:
    """Load the server on ``port``: for ``seconds`` clients ask; what they asked by then is waited for, and counts.

    Raises:
        LoadError: an answer is not ``status``, or a connection breaks or is refused.
    """
    began = time.perf_counter()
    connections = uvloop.run(_run(port, requests, clients, began + seconds, status))
    ended = [record for connection in connections for record in connection.ended]
    return Slice(
        items=sum(record.items for record in ended),
        seconds=max(record.answered for record in ended) - min(record.sent for record in ended),
        latencies=[record.answered - record.sent for record in ended],
    )


def ask(port: int, requests: Sequence[bytes]) -> list[bytes]:
    """The bodies of the answers to requests sent one after the other.

    Raises:
        LoadError: as `drive`.
    """
    (connection,) = uvloop.run(
        _run(port, (Request(data, 1) for data in requests), 1, time.perf_counter() + PATIENCE_S, keep=True)
    )
    return connection.bodies


class _Answered(NamedTuple):
    sent: float
    answered: float
    items: int


class _Client(asyncio.Protocol):
    """One connection: sends until ``until``, or until there are no more requests."""

    def __init__(self, requests: Iterator[Request], until: float, status: int, keep: bool) -> None:
        self.ended: list[_Answered] = []
        self.bodies: list[bytes] = []
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._until = until
        self._status = re.compile(rb"HTTP/1\.[01] %d " % status)
        self._keep = keep
        self._head = b""
        self._body: list[bytes] = []
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None) if time.perf_counter() < self._until else None
        if request is None:
            self.left.set_result(None)
            self._transport.close()
        else:
            self._items, self._sent = request.items, time.perf_counter()
            self._transport.write(request.data)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._head[: end + 2])
            if not self._status.match(self._head) or length is None:
                self._fail(f"answered {self._head[:400]!r}")
                return
            data, self._missing = self._head[end + 4 :], int(length[1])
            self._head = b""
        self._missing -= len(data)
        if self._keep:
            self._body.append(data)
        if self._missing == 0:
            self._missing = -1
            self._answered()

    def _answered(self) -> None:
        self.ended.append(_Answered(self._sent, time.perf_counter(), self._items))
        if self._keep:
            self.bodies.append(b"".join(self._body))
            self._body.clear()
        self._send()

    def _fail(self, reason: str) -> None:
        if not self.left.done():
            self.left.set_exception(LoadError(f"The server {reason}."))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("hung up")


async def _run(
    port: int, requests: Iterator[Request], clients: int, until: float, status: int = 200, *, keep: bool = False
) -> list[_Client]:
    loop = asyncio.get_running_loop()
    try:
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: _Client(requests, until, status, keep), "127.0.0.1", port)
                for _ in range(clients)
            )
        )
    except OSError as error:
        raise LoadError(f"Nothing answers on port {port}: {error}.") from error
    connections = [client for _, client in made]
    try:
        async with asyncio.timeout_at(loop.time() + max(0.0, until - time.perf_counter()) + PATIENCE_S):
            await asyncio.gather(*(client.left for client in connections))
    except TimeoutError:
        raise LoadError(f"The server left a request without an answer for {PATIENCE_S:.0f} s.") from None
    return connections
