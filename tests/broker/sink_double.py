"""A small real HTTP server that takes result events, answers as it is told, and keeps what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from sie_broker import process


class Received(NamedTuple):
    """One request, and what it was answered with."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    query: str = ""


class SinkServer:
    """``answers``: statuses and headers for the next requests; 200 when there are none. ``hold``: cleared, it waits."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.open = 0
        self.most_open = 0
        self.url = ""

    @property
    def accepted(self) -> list[Received]:
        """What was answered with 200."""
        return [each for each in self.received if each.status == 200]

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Serve while the context is open; yields the URL."""

        async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
            request = Request(scope, receive)
            response = await self._answer(request, await request.body())
            await response(scope, receive, send)

        async with process.serving(app, "127.0.0.1", port, drain_s=0) as served:
            self.url = f"http://127.0.0.1:{served}"
            yield self.url

    async def _answer(self, request: Request, body: bytes) -> Response:
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.received.append(Received(request.url.path, dict(request.headers), body, status, request.url.query))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self.hold.wait()
        finally:
            self.open -= 1
        return Response(b"", status, headers)
