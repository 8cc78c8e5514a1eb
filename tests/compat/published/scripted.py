"""A server made of the ingress's own answers that gives them in an order a test chose.

Owns the script and the serving. What an error looks like on the wire is the ingress's: the same middleware, the same
short way, the same bytes of results.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sie_broker import process
from sie_ingress.express import Express
from sie_ingress.identity import Identified
from sie_sdk import replies, wire
from sie_sdk.errors import SIEError
from sie_sdk.outputs import DenseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Entity, Operation, Timing, Usage


class Scripted:
    """Raises what stands in ``script``, one for each request, and answers when there is nothing left."""

    def __init__(self) -> None:
        self.script: list[SIEError] = []
        self.asked = 0

    async def serve(self, operation: Operation, request: Request) -> Response:
        """One request."""
        body = await request.body()
        self.asked += 1
        if self.script:
            raise self.script.pop(0)
        parsed = wire.PARSERS[operation](body, wire.MSGPACK)
        ids, usage = [item.id for item in parsed.items], Usage(input_tokens=1)
        match operation:
            case "encode":
                rows = np.ones((len(ids), 4), np.float32)
                made = replies.encode("m", ids, {"dense": DenseOutput(rows, 4, "float32")}, Timing(), usage)
            case "score":
                made = replies.score("m", np.arange(len(ids), dtype=np.float32), ids, None, Timing(), usage)
            case "extract":
                found = Extracted([Entity("a", "b", 1.0, 0, 1)], [])
                made = replies.extract("m", ids, [found] * len(ids), Timing(), usage)
        return Response(made, media_type=wire.MSGPACK)


@contextmanager
def serving(scripted: Scripted) -> Iterator[str]:
    """Serve it on a thread of its own; yields its URL."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    port = 0

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"", 404)(scope, receive, send)

    async def main() -> None:
        nonlocal port
        application: Any = Identified(Express(nothing, scripted.serve, {}))
        async with process.serving(application, "127.0.0.1", 0, drain_s=0) as port:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
