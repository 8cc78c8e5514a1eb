"""What comes before a body has a limit, in however many pieces it comes; all else goes on as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from sie_broker import process
from sie_broker.http_protocol import HEAD_BYTES

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes the body has."""
    body = await Request(scope, receive).body()
    await Response(str(len(body)).encode())(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with process.serving(counting, "127.0.0.1", 0, drain_s=1) as port:
        yield port


async def answers(port: int, *pieces: bytes, count: int = 1) -> list[tuple[int, bytes]]:
    """Status and body of each answer to what is sent in these pieces; [] when the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    try:
        async with asyncio.timeout(10):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            for _ in range(count):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                found.append((int(head.split()[1]), await reader.readexactly(length)))
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
    return found


def headers(size: int) -> bytes:
    """A request whose head has so many bytes."""
    return GET + b"X-Long: " + b"x" * (size - len(GET) - 12) + b"\r\n\r\n"


async def test_a_head_of_the_limit_is_read_and_one_byte_more_is_refused(port: int) -> None:
    assert len(headers(HEAD_BYTES)) == HEAD_BYTES
    assert await answers(port, headers(HEAD_BYTES)) == [(200, b"0")]
    ((status, body),) = await answers(port, headers(HEAD_BYTES + 1))
    error = json.loads(body)["error"]
    assert (status, error["code"], error["param"], error["limit"]) == (431, "PAYLOAD_TOO_LARGE", "headers", HEAD_BYTES)


@pytest.mark.parametrize("start", [GET + b"X-Long: ", GET + b"X-", b"GET /", CHUNKED + b"1\r\nx\r\n0\r\nX-Trailer: "])
async def test_what_never_ends_is_cut_off(port: int, start: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    sent = 0
    async with asyncio.timeout(20):
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"x" * 4096)
                await writer.drain()
                sent += 4096
                assert sent < 20_000_000
    writer.close()


async def test_a_body_may_have_any_length_in_any_pieces_and_the_next_request_has_a_head_of_its_own(port: int) -> None:
    long = b"y" * (3 * HEAD_BYTES)
    posted = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(long)
    chunk = b"%x\r\n%b\r\n" % (len(long), long)
    assert await answers(port, posted + long, headers(HEAD_BYTES), posted, long, count=3) == [
        (200, b"%d" % len(long)),
        (200, b"0"),
        (200, b"%d" % len(long)),
    ]
    assert await answers(port, CHUNKED, *[chunk] * 3, b"0\r\n\r\n", CHUNKED + chunk + b"0\r\n\r\n", count=2) == [
        (200, b"%d" % (3 * len(long))),
        (200, b"%d" % len(long)),
    ]


async def test_many_small_requests_on_one_connection_are_all_answered(port: int) -> None:
    several = [headers(HEAD_BYTES // 4)] * 12
    assert await answers(port, *several, count=12) == [(200, b"0")] * 12
