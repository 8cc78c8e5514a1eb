"""``/ws/cluster-status`` and ``/ws/status``: how the cluster is, as frames of JSON, to as many as want to watch.

Owns who watches and when they are let go. A frame is made once for all watchers; who is slow misses frames and keeps
nobody waiting. What a frame says stands in ``cluster`` and ``worker_status``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from sie_broker import clock
from sie_config.registry import Registry
from sie_ingress import worker_status
from sie_ingress.cluster import Cluster

CLUSTER_S, WORKER_S = 1.0, 0.2
"""Seconds between frames, as the published protocol has them."""
SEND_S = 5.0
"""Who does not take a frame within this is let go."""
LEAVE_S = 1.0
"""So long the server waits for them when it leaves."""
MOST = 1000
"""Watchers at a time."""
GOING_AWAY = 1001


class Frames:
    """One kind of frame. ``make``: the newest; ``every_s``: how old it may get; ``monotonic``: seconds."""

    def __init__(
        self, make: Callable[[], object], every_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.every_s = every_s
        self._make = make
        self._monotonic = monotonic
        self._made = float("-inf")
        self._frame = ""

    def newest(self) -> str:
        """The frame for whoever asks now, as JSON."""
        now = self._monotonic()
        if now - self._made > 0.9 * self.every_s:  # watchers' timers are a little early now and then
            self._frame, self._made = msgspec.json.encode(self._make()).decode(), now
        return self._frame


class Watch:
    """The two routes. ``seen``: the cluster now; ``ready``: whether this server takes requests."""

    def __init__(self, registry: Registry, seen: Callable[[], Cluster], ready: Callable[[], bool]) -> None:
        began = clock.now()
        self._cluster = Frames(seen, CLUSTER_S)
        self._worker = Frames(lambda: worker_status.status(registry, seen(), began, ready()), WORKER_S)
        self._leaving = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()

    def routes(self) -> list[WebSocketRoute]:
        """Both."""
        return [
            WebSocketRoute("/ws/cluster-status", self.cluster),
            WebSocketRoute("/ws/status", self.worker),
        ]

    async def leave(self) -> None:
        """Tell every watcher that the server is going away; later ones are refused."""
        self._leaving.set()
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=LEAVE_S)

    async def cluster(self, websocket: WebSocket) -> None:
        """Frames of `cluster.Cluster`."""
        await self._serve(websocket, self._cluster)

    async def worker(self, websocket: WebSocket) -> None:
        """Frames of `worker_status.Status`."""
        await self._serve(websocket, self._worker)

    async def _serve(self, websocket: WebSocket, frames: Frames) -> None:
        if self._leaving.is_set() or len(self._watchers) >= MOST:
            return await websocket.close()  # before it was accepted: HTTP 403
        await websocket.accept()
        watcher = asyncio.create_task(self._send(websocket, frames))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        gone = asyncio.create_task(_gone(websocket))
        try:
            await asyncio.wait({watcher, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            gone.cancel()
        return None

    async def _send(self, websocket: WebSocket, frames: Frames) -> None:
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while not leaving.done():
                async with asyncio.timeout(SEND_S):
                    await websocket.send_text(frames.newest())
                await asyncio.wait({leaving}, timeout=frames.every_s)
            await websocket.close(GOING_AWAY)
        except (TimeoutError, WebSocketDisconnect):
            return  # too slow, or gone
        finally:
            leaving.cancel()


async def _gone(websocket: WebSocket) -> None:
    """Return when the watcher has left; what it says is not listened to."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
