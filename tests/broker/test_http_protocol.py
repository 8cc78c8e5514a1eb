"""What comes before a body has a limit, in however many pieces, and so has its time; no upgrade costs a body."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from sie_broker import http_protocol, process
from sie_broker.http_protocol import HEAD_BYTES
from tests.conftest import eventually

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


async def test_an_answer_leaves_before_what_is_still_to_be_done_for_it() -> None:
    came, seen = threading.Event(), list[bool]()

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"done")(scope, receive, send)
        seen.append(came.wait(5))  # and the loop with it

    def ask(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(GET + b"\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\ndone"):
                answer += connection.recv(4096)
            came.set()

    async with process.serving(busy, "127.0.0.1", 0, drain_s=1) as port:
        await asyncio.to_thread(ask, port)
        await eventually(lambda: bool(seen))
    assert seen == [True]


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


OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n",
    b"Connection: keep-alive\r\nconnection: upgrade\r\nUPGRADE:h2c\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    b"Upgrade: TLS/1.2\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
)


@pytest.mark.parametrize("offer", OFFERS)
async def test_an_offer_of_another_protocol_does_not_cost_the_body(port: int, offer: bytes) -> None:
    post = b"POST / HTTP/1.1\r\nHost: x\r\n" + offer
    sized, chunked = post + b"Content-Length: 5\r\n\r\nhello", post + CHUNKED.partition(b"x\r\n")[2]
    in_chunks = chunked + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    get = b"GET / HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n"
    for request in (sized, in_chunks):
        assert await answers(port, request, request + headers(200), count=3) == [(200, b"5"), (200, b"5"), (200, b"0")]
    assert await answers(port, get + sized + get, count=3) == [(200, b"0"), (200, b"5"), (200, b"0")]


async def test_an_offer_is_passed_over_wherever_it_is_cut(port: int) -> None:
    request = b"POST / HTTP/1.1\r\nHost: x\r\n" + OFFERS[0] + b"Content-Length: 5\r\n\r\nhello"
    for cut in range(1, len(request)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request[:cut])
        await writer.drain()
        await answers(port, headers(100))  # what came before is read by now
        writer.write(request[cut:])
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(1) == b"5", cut
        writer.close()


async def test_thousands_of_offers_in_a_row_are_no_recursion(port: int) -> None:
    get = b"GET / HTTP/1.1\r\nHost: x\r\n" + OFFERS[0] + b"\r\n"
    assert await answers(port, get * 2000, count=2000) == [(200, b"0")] * 2000


@pytest.mark.parametrize(
    "start", [GET, b"P", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhell", CHUNKED, CHUNKED + b"5\r\n"]
)
async def test_who_stops_in_the_middle_of_a_request_is_let_go(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "HEAD_S", "STILL_S"):
        monkeypatch.setattr(http_protocol, name, 0.1)
    async with process.serving(counting, "127.0.0.1", 0, drain_s=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_who_waits_for_an_answer_or_sends_slowly_is_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "LOOK_S", 0.01)
    monkeypatch.setattr(http_protocol, "STILL_S", 1.0)
    looks, go_on = 0, asyncio.Event()
    look = http_protocol.Protocol._look_around

    def counted(protocol: http_protocol.Protocol) -> None:
        nonlocal looks
        looks += 1
        look(protocol)

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await counting(scope, receive, send)

    monkeypatch.setattr(http_protocol.Protocol, "_look_around", counted)
    async with process.serving(waiting, "127.0.0.1", 0, drain_s=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED)
        for place in range(10):
            writer.write(b"1\r\nx\r\n")
            await eventually(lambda seen=place * 20: looks > seen)  # type: ignore[misc]
        writer.write(b"0\r\n\r\n")
        began = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() > began + 2)
        go_on.set()
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[http_protocol.Protocol]:
    """The connections that have ended."""
    found: list[http_protocol.Protocol] = []
    ended = http_protocol.Protocol.connection_lost

    def noted(protocol: http_protocol.Protocol, fault: Exception | None) -> None:
        found.append(protocol)
        ended(protocol, fault)

    monkeypatch.setattr(http_protocol.Protocol, "connection_lost", noted)
    return found


async def long(scope: Any, receive: Any, send: Any) -> None:
    await Response(bytes(50_000_000))(scope, receive, send)


async def test_who_takes_nothing_of_an_answer_is_let_go_and_who_takes_it_slowly_is_not(
    monkeypatch: pytest.MonkeyPatch, lost: list[http_protocol.Protocol]
) -> None:
    monkeypatch.setattr(http_protocol, "LOOK_S", 0.5)
    monkeypatch.setattr(http_protocol, "STILL_S", 3.0)
    async with process.serving(long, "127.0.0.1", 0, drain_s=1) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # so that each piece that is taken makes room
        narrow.connect(("127.0.0.1", port))
        slow, other = await asyncio.open_connection(sock=narrow, limit=1024)
        writer.write(headers(100))
        other.write(headers(100))
        taken = 0
        async with asyncio.timeout(60):
            await eventually(lambda: http_protocol.unsent_bytes() > 60_000_000)
            while not lost:
                taken += len(await slow.readexactly(65536))
                await asyncio.sleep(0.02)  # some 3 MB/s, and 50 in all
            while taken < 50_000_000:
                taken += len(await slow.readexactly(min(500_000, 50_000_000 - taken)))
        assert len(lost) == 1
        assert http_protocol.unsent_bytes() == 0
        writer.close()
        other.close()


async def test_when_room_is_needed_who_takes_an_answer_too_slowly_loses_it_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch, lost: list[http_protocol.Protocol]
) -> None:
    async with process.serving(long, "127.0.0.1", 0, drain_s=1) as port, asyncio.timeout(60):
        slow, its_writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        quick, other = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        for writer in (its_writer, other):
            writer.write(headers(100))
        await eventually(lambda: http_protocol.unsent_bytes() > 60_000_000)
        taken = len(await quick.readexactly(20_000_000))
        http_protocol.make_room(1 << 40)
        assert http_protocol.unsent_bytes() > 40_000_000, "it is too early to say who is slow"
        monkeypatch.setattr(http_protocol, "SLOW_S", 0.0)
        http_protocol.make_room(1)
        await eventually(lambda: len(lost) == 1)
        assert http_protocol.unsent_bytes() < 40_000_000
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slow.readexactly(50_000_000)
        http_protocol.make_room(1 << 40)
        await quick.readexactly(50_000_000 - taken)
        assert len(lost) == 1
        for writer in (its_writer, other):
            writer.close()
