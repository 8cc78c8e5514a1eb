"""What no client would write, byte by byte on a connection: it is answered or cut, and the server goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker import process
from sie_broker.memory import MemoryBroker
from tests.fuzz import mutations
from tests.fuzz.conftest import share
from tests.fuzz.mutations import Spoil
from tests.ingress.conftest import ROUTE, opened

BODY = b'{"items": [{"text": "four"}]}'
JSON = b"Host: a\r\nContent-Type: application/json\r\n"
START = f"POST {ROUTE} HTTP/1.1\r\n".encode()
UPGRADE = b"GET /ws/status HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
WHOLE = START + JSON + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = START + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER_S = 30.0

CASES = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 40,
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.0": b"GET /readyz HTTP/1.0\r\n\r\n",
    "HTTP/9.9": b"GET /readyz HTTP/9.9\r\nHost: a\r\n\r\n",
    "no host": b"GET /readyz HTTP/1.1\r\n\r\n",
    "an unknown method": b"BREW /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    "a method of noise": b"\x00\xff /readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "TRACE": b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "every resource": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "an absolute address": b"GET http://b/readyz HTTP/1.1\r\nHost: a\r\n\r\n",
    "an empty path": b"GET  HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space in the path": b"GET /v1/models/a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "noise in the path": b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "escaped noise in the path": b"GET /v1/models/%ff%fe%00%zz%2 HTTP/1.1\r\nHost: a\r\n\r\n",
    "dots in the path": b"GET /v1/models/../../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long path": b"GET /v1/models/" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long job": b"GET /v1/jobs/" + b"%20" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a fragment": b"GET /readyz#a?b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a query of noise": b"GET /readyz?%ff=%&&=;=\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long header": b"GET /readyz HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /readyz HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    "a header without a colon": b"GET /readyz HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
    "a header of noise": b"GET /readyz HTTP/1.1\r\nHost: a\r\n\xff\x00: \x00\xff\r\n\r\n",
    "a folded header": b"GET /readyz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "a lone line feed": b"GET /readyz HTTP/1.1\nHost: a\n\n",
    "two lengths": START + JSON + b"Content-Length: 29\r\nContent-Length: 5\r\n\r\n" + BODY,
    "a length and chunks": CHUNKED.replace(b"Transfer", b"Content-Length: 5\r\nTransfer") + b"0\r\n\r\n",
    "a length below zero": START + JSON + b"Content-Length: -5\r\n\r\n" + BODY,
    "a length of words": START + JSON + b"Content-Length: five\r\n\r\n" + BODY,
    "a length beyond counting": START + JSON + b"Content-Length: " + b"9" * 60 + b"\r\n\r\n" + BODY,
    "a length over the limit": START + JSON + b"Content-Length: 99999999999\r\n\r\n" + BODY,
    "a length too short": WHOLE.replace(b"Length: 29", b"Length: 5"),
    "a length too long": WHOLE.replace(b"Length: 29", b"Length: 500"),
    "no length": START + JSON + b"\r\n" + BODY,
    "chunks": CHUNKED + b"1d\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks with trailers": CHUNKED + b"1d;a=b\r\n" + BODY + b"\r\n0\r\nX: a\r\n\r\n",
    "a chunk of words": CHUNKED + b"five\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk beyond counting": CHUNKED + b"F" * 40 + b"\r\n" + BODY,
    "a chunk without an end": CHUNKED + b"ff\r\n" + BODY,
    "an unknown coding": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n",
    "a promise": WHOLE.replace(b"Host", b"Expect: 100-continue\r\nHost"),
    "a promise of noise": WHOLE.replace(b"Host", b"Expect: \xff\r\nHost"),
    "two requests at once": WHOLE + WHOLE,
    "a request and noise": WHOLE + b"\x00" * 400,
    "a websocket on a route": WHOLE.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: websocket\r\nHost"),
    "a websocket without a key": UPGRADE + b"\r\n",
    "a websocket with a key of noise": UPGRADE + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \xff\r\n\r\n",
    "an old websocket": UPGRADE + b"Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "HTTP/2 in clear": WHOLE.replace(
        b"Host", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\nHost"
    ),
}


async def said(port: int, sent: bytes) -> bytes:
    """What comes back for these bytes until the connection ends.

    We end it when another request, sent later, has been answered: what is missing by then will not come.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(_read(reader))
    try:
        async with asyncio.timeout(ANSWER_S):
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                await writer.drain()
                assert (await whole(port)).startswith(b"HTTP/1.1 200 ")
                writer.write_eof()
            return await reading
    finally:
        reading.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := await reader.read(65536):
            received += more
    return received


async def whole(port: int) -> bytes:
    """The answer to a request that is well."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(WHOLE.replace(b"Host", b"Connection: close\r\nHost"))
        return await _read(reader)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[bytes], bytes]]:
    """Send bytes to one ingress on a port, which has to live through them all."""
    stack = contextlib.AsyncExitStack()

    async def enter() -> int:
        desk = await stack.enter_async_context(opened(MemoryBroker()))
        await stack.enter_async_context(desk.worker())
        return await stack.enter_async_context(process.serving(desk.ingress, "127.0.0.1", 0))

    with asyncio.Runner() as loop:
        port = loop.run(enter())
        yield lambda sent: loop.run(said(port, sent))
        loop.run(stack.aclose())


def check(answer: bytes) -> None:
    """Nothing, or HTTP, and no fault of the server's."""
    assert b"secret" not in answer
    assert b"Traceback" not in answer
    if answer:
        version, status, *_ = answer.split(b" ", 2)
        assert version.startswith(b"HTTP/1.")
        assert int(status) < 500


@pytest.mark.parametrize("case", CASES)
def test_whatever_comes_on_a_connection_the_server_goes_on(ask: Callable[[bytes], bytes], case: str) -> None:
    check(ask(CASES[case]))


@pytest.mark.timeout(0)
def test_a_request_that_is_broken_anywhere_is_answered_or_cut(ask: Callable[[bytes], bytes]) -> None:
    @share(0.05)
    @given(st.sampled_from([*CASES.values()]), mutations.spoils, mutations.spoils)
    def property(sent: bytes, spoils: list[Spoil], more: list[Spoil]) -> None:
        for spoil in (*spoils, *more):
            sent = mutations.spoilt(sent, spoil)
        check(ask(sent))

    property()
