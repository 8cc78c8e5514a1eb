"""The blocking client's own pool of connections, where the end of one wakes the thread that waits for a reply on it.

Owns which sockets are open, and how they are closed. An event loop's pool needs none of it: whoever awaits a connection
hears of its end. Not here: requests and what their errors mean (``transport``).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import httpx


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
