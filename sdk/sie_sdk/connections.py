"""Our clients' own pools of connections: what httpx's lack where many threads or tasks share one.

Owns which sockets of a blocking client are open, and how they are closed; an event loop's need none of it: whoever
awaits a connection hears of its end. And which of its pools a request of an awaiting client goes by. Not here:
requests and what their errors mean (``transport``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import httpx

FEW = 8
"""Connections of one pool of an awaiting client. For each request httpcore looks at all of its pool for each of them
that is idle (1.0.9): with 100 in one pool a call took ten times as long as one by itself."""


class Connections(httpx.Client):
    """An httpx client that knows its sockets: to close one wakes nobody who waits on it, to shut it down does.

    Its pool itself may close one that a request has just been sent on: a thread finds it idle, another takes it
    (httpcore 1.0.9, https://github.com/encode/httpcore/issues/1110). That request fails at once, and may be repeated,
    instead of waiting until its timeout.

    httpx opens them as ever, for proxies and TLS too, and tells the ``trace`` of the request they are opened for. If it
    did not tell any more, calls would end by their timeouts (``tests/sdk/test_network.py``).
    """

    def __init__(self, limits: httpx.Limits) -> None:
        super().__init__(limits=limits)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._sockets_lock = threading.Lock()
        self._ended = False

    @property
    def is_closed(self) -> bool:
        return self._ended or super().is_closed

    def build_request(self, *args: Any, **keywords: Any) -> httpx.Request:
        request = super().build_request(*args, **keywords)
        request.extensions["trace"] = self._traced
        return request

    def end(self) -> None:
        """End what is under way, in whichever thread; one that is being connected ends as soon as it is."""
        with self._sockets_lock:
            self._ended = True
            opened = [*self._sockets]
        for each in opened:
            _shut(each)

    def close(self) -> None:
        self.end()
        super().close()

    def _traced(self, event: str, info: Mapping[str, Any]) -> None:
        if not event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        stream = info["return_value"]
        opened: socket.socket = stream.get_extra_info("socket")
        stream.close = partial(_close, opened)
        with self._sockets_lock:
            self._sockets.add(opened)
            ended = self._ended
        if ended:
            _shut(opened)


def _close(opened: socket.socket) -> None:
    _shut(opened)
    opened.close()


def _shut(opened: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed, or handed over to its TLS socket
        # Not the TLS socket's own method: after that, its reader would take what is still there for plain bytes.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


class AsyncConnections:
    """The pools of one event loop, of `FEW` connections each. Requests beyond them wait here, first come first served.

    Args:
        max_connections: of all pools.
        keep_alive: whether a connection is for many requests.
    """

    def __init__(self, max_connections: int, keep_alive: bool) -> None:
        self.is_closed = False
        self._keeps_alive = keep_alive
        self._left = max_connections
        self._turns = asyncio.Semaphore(max_connections)
        self._certificates = httpx.create_ssl_context()
        self._pools: list[_Pool] = []

    @contextlib.asynccontextmanager
    async def taken(self, patience_s: float) -> AsyncIterator[httpx.AsyncClient]:
        """A pool with a connection for one request, for the time of a ``with`` block.

        Raises:
            httpx.PoolTimeout: there was none for ``patience_s``.
        """
        try:
            async with asyncio.timeout(patience_s if self._turns.locked() else None):
                await self._turns.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("all connections are taken") from None
        pool = next((pool for pool in self._pools if pool.free), None) or self._another()
        pool.free -= 1
        try:
            yield pool.http
        finally:
            pool.free += 1
            self._turns.release()

    async def aclose(self) -> None:
        """Close all connections; those that are being made are closed by who makes them."""
        self.is_closed = True
        for pool in self._pools:
            await pool.http.aclose()

    def _another(self) -> _Pool:
        size = min(FEW, self._left)
        self._left -= size
        limits = httpx.Limits(max_connections=size, max_keepalive_connections=size if self._keeps_alive else 0)
        self._pools.append(pool := _Pool(httpx.AsyncClient(limits=limits, verify=self._certificates), size))
        return pool


class _Pool:
    """``free``: the connections that no request has."""

    def __init__(self, http: httpx.AsyncClient, free: int) -> None:
        self.http = http
        self.free = free
