"""One request to an ASGI application and its answer, without a client in between that would refuse to send it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message

DEADLINE_S = 20.0


class Request(NamedTuple):
    """A request as a server hands it on. ``path`` is decoded; the body comes in ``chunks``.

    ``hangs_up``: after the chunks the caller is gone, in the middle of its body.
    """

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    chunks: Sequence[bytes]
    hangs_up: bool = False


class Answer(NamedTuple):
    """What came back; ``status`` 0 is no answer."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app: ASGIApp, request: Request, *, answered: bool = False) -> Answer:
    """The answer to ``request``. ``answered``: an exception that came out after it does not count.

    Raises:
        TimeoutError: there is none within `DEADLINE_S`.
        Exception: what came out of the application, which a server would have had to catch.
    """
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number + 1 < len(request.chunks) or request.hangs_up}
        for number, chunk in enumerate(request.chunks)
    ]
    if not request.chunks and not request.hangs_up:
        waiting = [{"type": "http.request", "body": b"", "more_body": False}]
    waiting.reverse()
    gone = asyncio.Event()
    status, headers, body = 0, dict[str, str](), bytearray()

    async def receive() -> Message:
        if waiting:
            return waiting.pop()
        if not request.hangs_up:
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(
                {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
            )
        else:
            body.extend(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogatepass"),
        "query_string": b"",
        "root_path": "",
        "headers": [*request.headers],
        "server": ("fuzz", 80),
        "client": ("fuzz", 1),
    }
    async with asyncio.timeout(DEADLINE_S):
        try:
            await app(scope, receive, send)
        except Exception:
            if not (answered and status):
                raise
    return Answer(status, headers, bytes(body))
