"""Our clients' own connections, each in an httpx client of its own: whose turn it is, and how all of them end.

In one pool of httpcore (1.0.9) each call looks at each idle connection, and for each of these at all: with 100 of them
an awaited call took ten times as long as one by itself. Of requests that wait for one of a few, those that have come
last are often first. And a pool may close a connection on which another thread has just sent a request, which then
stands still until its timeout (https://github.com/encode/httpcore/issues/1110).

Not here: requests and what their errors mean (``transport``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import httpx

IDLE_S = 5.0
"""A connection that was not needed for so long is closed, when another one is no longer needed."""


class Connections:
    """A blocking client's. Threads that want more than there may be wait for one.

    Args:
        max_connections: at a time.
        keep_alive: whether a connection is for many requests.
    """

    def __init__(self, max_connections: int, keep_alive: bool) -> None:
        self.is_closed = False
        self._limits = _one(keep_alive)
        self._turns = Turns(max_connections)
        self._certificates = httpx.create_ssl_context()  # some 40 ms of a core
        self._clients: list[_Ending] = []
        self._free: deque[tuple[_Ending, float]] = deque()
        """And since when. The next request takes the last one, so that no more are open than are needed."""

    @contextlib.contextmanager
    def taken(self, patience_s: float) -> Iterator[httpx.Client]:
        """A client whose connection no other request has, for the time of a ``with`` block.

        Raises:
            httpx.PoolTimeout: there was none for ``patience_s``.
        """
        if not self._turns.acquire(patience_s):
            raise _none_free()
        try:
            client, _ = self._free.pop()
        except IndexError:
            self._clients.append(client := _Ending(limits=self._limits, verify=self._certificates))
        try:
            if self.is_closed:
                client.end()
            yield client
        except BaseException:  # its only connection may stay taken
            self._clients.remove(client)
            client.close()
            raise
        else:
            self._free.append((client, time.monotonic()))
        finally:
            self._turns.release()
            self._close_idle()

    def end(self) -> None:
        """End what is under way, in whichever thread; one that is being connected ends as soon as it is."""
        self.is_closed = True
        for client in [*self._clients]:
            client.end()

    def close(self) -> None:
        """Close all connections."""
        self.end()
        for client in [*self._clients]:
            client.close()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):  # others have taken them all
            if time.monotonic() - self._free[0][1] > IDLE_S:
                client, _ = self._free.popleft()
                self._clients.remove(client)
                client.close()


class Turns:
    """A semaphore whose threads go first come first served. ``threading``'s gives what one lets go of to itself again,
    if it is back before the next one has woken."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._lock = threading.Lock()
        self.waiting: deque[threading.Event] = deque()

    def acquire(self, patience_s: float) -> bool:
        """Take a turn; whether there was one within that time."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self.waiting.append(given := threading.Event())
        try:
            given.wait(patience_s)
        except BaseException:  # Ctrl-C
            if not self._withdrawn(given):
                self.release()
            raise
        return not self._withdrawn(given)

    def release(self) -> None:
        """Give a turn to who has waited longest."""
        with self._lock:
            if self.waiting:
                self.waiting.popleft().set()
            else:
                self._free += 1

    def _withdrawn(self, given: threading.Event) -> bool:
        """Whether a thread no longer waits, and has no turn."""
        with self._lock:
            if waits := not given.is_set():
                self.waiting.remove(given)
            return waits


class _Ending(httpx.Client):
    """An httpx client that knows its sockets: to close one wakes nobody who waits on it, to shut it down does.

    httpx opens them as ever, for proxies and TLS too, and tells the ``trace`` of the request they are opened for. If it
    did not tell any more, calls would end by their timeouts (``tests/sdk/test_network.py``).
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._sockets_lock = threading.Lock()
        self._ended = False

    def build_request(self, *args: Any, **keywords: Any) -> httpx.Request:
        request = super().build_request(*args, **keywords)
        request.extensions["trace"] = self._traced
        return request

    def end(self) -> None:
        with self._sockets_lock:
            self._ended = True
            opened = [*self._sockets]
        for each in opened:
            _shut(each)

    def _traced(self, event: str, info: Mapping[str, Any]) -> None:
        if not event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        opened: socket.socket = info["return_value"].get_extra_info("socket")
        with self._sockets_lock:
            self._sockets.add(opened)
            ended = self._ended
        if ended:
            _shut(opened)


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed, or handed over to its TLS socket
        # Not the TLS socket's own method: after that, its reader would take what is still there for plain bytes.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


class AsyncConnections:
    """An awaiting client's, of one event loop. Requests beyond them wait, first come first served. Args as above."""

    def __init__(self, max_connections: int, keep_alive: bool) -> None:
        self.is_closed = False
        self._limits = _one(keep_alive)
        self._turns = asyncio.Semaphore(max_connections)
        self._certificates = httpx.create_ssl_context()
        self._clients: list[httpx.AsyncClient] = []
        self._free: deque[tuple[httpx.AsyncClient, float]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, patience_s: float) -> AsyncIterator[httpx.AsyncClient]:
        """See `Connections.taken`."""
        try:
            async with asyncio.timeout(patience_s if self._turns.locked() else None):
                await self._turns.acquire()
        except TimeoutError:
            raise _none_free() from None
        client = self._free.pop()[0] if self._free else self._another()
        try:
            yield client
        except BaseException:  # its only connection may stay taken: httpcore's pools do not survive every cancellation
            self._clients.remove(client)
            self._turns.release()
            await client.aclose()
            raise
        self._free.append((client, time.monotonic()))
        self._turns.release()
        if time.monotonic() - self._free[0][1] > IDLE_S:
            client, _ = self._free.popleft()
            self._clients.remove(client)
            await client.aclose()

    async def aclose(self) -> None:
        """Close all connections; those that are being made are closed by who makes them."""
        self.is_closed = True
        for client in self._clients:
            await client.aclose()

    def _another(self) -> httpx.AsyncClient:
        self._clients.append(client := httpx.AsyncClient(limits=self._limits, verify=self._certificates))
        return client


def _one(keep_alive: bool) -> httpx.Limits:
    return httpx.Limits(max_connections=1, max_keepalive_connections=int(keep_alive), keepalive_expiry=IDLE_S)


def _none_free() -> httpx.PoolTimeout:
    return httpx.PoolTimeout("all connections are taken")
