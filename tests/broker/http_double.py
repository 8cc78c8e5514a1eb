"""A small real HTTP server that counts and scripts demand sessions: the other end of `sie_broker.demand.sessions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HELD = 0


class SessionServer:
    """Holds each POST open until told otherwise; ``answers`` are statuses for the next requests, given at once."""

    def __init__(self) -> None:
        self.open = 0
        self.most_open = 0
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        self.end = asyncio.Event()
        self.url = ""
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        self.end.clear()
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self.url
        finally:
            self.end.set()
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.paths.append(head[0].split(" ")[1])
        self.headers.append(
            {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        )
        status = self.answers.pop(0) if self.answers else HELD
        if status == HELD:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            gone = await self._ended(reader)
            self.open -= 1
            if gone:
                return False
            status = 200
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        await writer.drain()
        return True

    async def _ended(self, reader: asyncio.StreamReader) -> bool:
        """Wait for the end of a held session; True when the client left."""
        waits = {asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(self.end.wait())}
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return any(task.result() == b"" for task in done)
