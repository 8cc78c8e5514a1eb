"""Calls for many items that share a client's connections: none keeps one while it waits, and all mind their ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sie_sdk import (
    CancelledByCallerError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    QueueUnavailableError,
    SIEAsyncClient,
    SIEClient,
    connections,
    transport,
    wire,
)
from sie_sdk.chunks import ITEMS
from sie_sdk.connections import Turns
from sie_sdk.effects import Send
from tests.platform import wait_until
from tests.sdk.scripted_server import Answer, Asked, ScriptedServer, Silent, computed, refused

MANY = 2 * ITEMS


class Both:
    """A client of each kind with one connection for calls of many items; its calls run beside the test."""

    def __init__(self, url: str, kind: str) -> None:
        self._threads = ThreadPoolExecutor(3)
        self._blocking = SIEClient(url, max_connections=2) if kind == "blocking" else None
        if self._blocking is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever)
            self._thread.start()
            self._awaiting = self._done(self._made(url))

    def encode(self, text: str, **keywords: Any) -> Future[Any]:
        """Ask for many times the same text."""
        texts = [text] * MANY
        if self._blocking is not None:
            blocking: Any = self._blocking
            return self._threads.submit(blocking.encode, "m", texts, **keywords)
        asked: Any = self._awaiting.encode("m", texts, **keywords)
        return asyncio.run_coroutine_threadsafe(asked, self._loop)

    def close(self) -> None:
        if self._blocking is not None:
            self._blocking.close()
        else:
            self._done(self._awaiting.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._threads.shutdown(wait=False)

    async def _made(self, url: str) -> SIEAsyncClient:
        return SIEAsyncClient(url, max_connections=2)

    def _done(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)


@pytest.fixture(params=["blocking", "awaiting"])
def encode(request: pytest.FixtureRequest, server: ScriptedServer) -> Iterator[Callable[..., Future[Any]]]:
    both = Both(server.url, request.param)
    yield both.encode
    both.close()


def text_of(asked: Asked) -> bytes:
    return b"9" if b"\xa19" in asked.body else b"1"


def test_a_call_that_waits_for_capacity_keeps_no_connection_from_others(
    server: ScriptedServer, encode: Callable[..., Future[Any]]
) -> None:
    up = threading.Event()

    def computes(asked: Asked) -> Answer:
        if text_of(asked) == b"9" and not up.is_set():
            return refused(QueueUnavailableError("Not yet.", retry_after=0.05))
        return computed(asked)

    server.computes = computes
    waiting = encode("9", deadline_s=60)
    wait_until(lambda: bool(server.asked))
    assert len(encode("1", deadline_s=20).result(30)) == MANY
    assert not waiting.done()
    up.set()
    assert len(waiting.result(30)) == MANY


def test_who_waits_for_a_connection_minds_its_deadline_and_its_cancellation(
    server: ScriptedServer, encode: Callable[..., Future[Any]]
) -> None:
    go = threading.Event()

    def computes(asked: Asked) -> Answer:
        assert go.wait(60)
        return computed(asked)

    server.computes = computes
    holding = encode("9")
    wait_until(lambda: len(server.asked) == 1)
    cancel = threading.Event()
    late, cancelled = encode("1", deadline_s=0.3), encode("1", cancel=cancel)
    with pytest.raises(DeadlineExceededError, match="No connection was free"):
        late.result(20)
    cancel.set()
    with pytest.raises(CancelledByCallerError):
        cancelled.result(20)
    assert (len(server.asked), holding.done()) == (1, False)
    go.set()
    assert len(holding.result(30)) == MANY


class Crowd:
    """Answers nobody before so many have asked at once, and notes how many have."""

    def __init__(self, most: int) -> None:
        self.most = 0
        self._wanted = most
        self._now = 0
        self._lock, self._full = threading.Lock(), threading.Event()

    def __call__(self, asked: Asked) -> Answer:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            if self._now == self._wanted:
                self._full.set()
        self._full.wait(30)
        with self._lock:
            self._now -= 1
        return computed(asked)


async def test_tasks_open_no_more_connections_than_they_may_and_all_have_their_turn(server: ScriptedServer) -> None:
    server.computes = crowd = Crowd(10)
    async with SIEAsyncClient(server.url, max_connections=10) as client:
        results = await asyncio.gather(*(client.encode("m", str(number)) for number in range(30)))
    assert [result.dense[0] for result in results if result.dense is not None] == [*range(30)]
    assert crowd.most == 10


def test_threads_open_no_more_connections_than_they_may_and_all_have_their_turn(server: ScriptedServer) -> None:
    server.computes = crowd = Crowd(4)
    with SIEClient(server.url, max_connections=4) as client, ThreadPoolExecutor(16) as threads:
        results = [*threads.map(lambda number: client.encode("m", str(number)), range(64))]
    assert [result.dense[0] for result in results if result.dense is not None] == [*range(64)]
    assert crowd.most == 4


async def test_tasks_that_wait_for_a_connection_go_first_come_first_served(server: ScriptedServer) -> None:
    server.computes = computed
    async with SIEAsyncClient(server.url, max_connections=1) as client:
        await asyncio.gather(*(client.encode("m", str(number)) for number in range(20)))
    numbers = [wire.parse_encode(asked.body, None).items[0].text for asked in server.asked]
    assert numbers == [str(number) for number in range(20)]


def test_threads_that_wait_for_a_turn_go_first_come_first_served() -> None:
    turns, order = Turns(1), list[int]()
    assert turns.acquire(0)

    def wait(number: int) -> None:
        assert turns.acquire(30)
        order.append(number)
        turns.release()

    threads = []
    for number in range(8):
        threads.append(thread := threading.Thread(target=wait, args=(number,)))
        thread.start()
        wait_until(lambda: len(turns.waiting) == number + 1)  # noqa: B023 - asked at once
    assert not turns.acquire(0.001)
    turns.release()
    for thread in threads:
        thread.join(30)
    assert order == [*range(8)]
    assert turns.acquire(0), "who gave up kept none"


async def test_connections_that_tasks_no_longer_need_are_closed(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.computes = Crowd(8)
    async with SIEAsyncClient(server.url) as client:
        await asyncio.gather(*(client.encode("m", "1") for _ in range(8)))
        server.computes = computed
        opened: list[httpx.AsyncClient] = [*client._line().http._clients]  # type: ignore[union-attr]  # our own
        monkeypatch.setattr(connections, "IDLE_S", 0.0)
        for _ in range(8):
            await client.encode("m", "1")
        assert len(opened) == 8
        assert sum(not each.is_closed for each in opened) <= 1


def test_connections_that_threads_no_longer_need_are_closed(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.computes = Crowd(8)
    with SIEClient(server.url) as client, ThreadPoolExecutor(8) as threads:
        assert len([*threads.map(lambda _: client.encode("m", "1"), range(8))]) == 8
        server.computes = computed
        opened: list[httpx.Client] = [*client._line().http._clients]  # type: ignore[union-attr]
        monkeypatch.setattr(connections, "IDLE_S", 0.0)
        for _ in range(8):
            client.encode("m", "1")
        assert len(opened) == 8
        assert sum(not each.is_closed for each in opened) <= 1


@pytest.mark.parametrize("connected", [False, True], ids=["at first", "connected"])
async def test_a_call_that_is_cancelled_at_whatever_point_keeps_no_connection_from_others(
    server: ScriptedServer, connected: bool
) -> None:
    server.computes = computed
    for turns_of_the_loop in range(40):  # httpcore's own pool is stuck after one of them
        async with SIEAsyncClient(server.url, max_connections=1) as client:
            if connected:
                await client.encode("m", "1")
            call = asyncio.create_task(client.encode("m", "1"))
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            async with asyncio.timeout(10):
                assert (await client.encode("m", "2")).dense is not None


async def test_a_call_that_gets_no_connection_says_so(server: ScriptedServer) -> None:
    server.computes = silent = Silent()
    wanted = Send("GET", "/", {}, timeout_s=0.01)
    async with SIEAsyncClient(server.url, max_connections=1) as client:
        first = asyncio.create_task(client.encode("m", "a"))
        try:
            assert await asyncio.to_thread(silent.came.wait, 30)
            line = client._line()
            with pytest.raises(ConnectionFailedError, match=r"No connection was free within 0\.01 s"):
                await transport.send_async(line.http, line.server, wanted)
        finally:
            silent.left.set()
            await first


def test_a_thread_that_gets_no_connection_says_so(server: ScriptedServer) -> None:
    server.computes = silent = Silent()
    wanted = Send("GET", "/", {}, timeout_s=0.01)
    with SIEClient(server.url, max_connections=1) as client, ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.encode, "m", "a")
        try:
            assert silent.came.wait(30)
            line = client._line()
            with pytest.raises(ConnectionFailedError, match=r"No connection was free within 0\.01 s"):
                transport.send(line.http, line.server, wanted)
        finally:
            silent.left.set()
            first.result(30)


def test_a_thread_that_waits_for_a_connection_when_its_client_is_closed_ends_with_that(server: ScriptedServer) -> None:
    server.computes = silent = Silent()
    with SIEClient(server.url, max_connections=1) as client, ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(client.encode, "m", "a")
            assert silent.came.wait(30)
            turns: Turns = client._line().http._turns  # type: ignore[union-attr]  # our own
            second = threads.submit(client.encode, "m", "b")
            wait_until(lambda: len(turns.waiting) == 1)
            client.close()
            for call in (first, second):
                with pytest.raises(ConfigurationError, match="This client is closed"):
                    call.result(30)
        finally:
            silent.left.set()
    assert len(server.asked) == 1
