"""``GET /v1/configs/watch``: the changes of the catalogue as server-sent events, at the config service and the ingress.

Owns the stream of each watcher and what is sent again to one that comes back. Events are those of ``changed_event``;
where a watcher was away for longer than is remembered here it is told ``config.reset``, and reads the export.
Source: HTML Living Standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sie_config.api.auth import Access
from sie_config.epochs import changed_event
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.state import State
from sie_config.epochs.store import Event
from sie_sdk.errors import InvalidInputError, UnavailableError

REMEMBERED = 1000
"""Events that are sent again to a watcher that comes back."""
MOST = 1000
"""Watchers at a time."""
BEHIND = 256
"""Events that may wait for a slow watcher; one that is slower is let go, and comes back."""
PING_S = 15.0
RETRY_MS = 1000
"""After what time a watcher whose stream ended asks again."""

Messages = asyncio.Queue[bytes | None]


class Watch:
    """The route, for those whom ``access`` lets read. ``state``: the catalogue now; `follow` says who tells of more."""

    def __init__(self, state: Callable[[], State], access: Access) -> None:
        self._state = state
        self._access = access
        self._past: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)
        self._watchers: set[Messages] = set()
        self._left = False

    def routes(self) -> list[Route]:
        """It alone."""
        return [Route("/v1/configs/watch", self._access.reading(self.serve), methods=["GET"])]

    def follow(self, mirror: Mirror) -> None:
        """Be told of each write, and of those that were missed."""
        mirror.listeners.append(self.heard)
        mirror.resets.append(self.reset)

    async def serve(self, request: Request) -> Response:
        """The stream: what came since ``Last-Event-ID``, or from now on."""
        if self._left or len(self._watchers) >= MOST:
            raise UnavailableError("No more watchers are taken.", retry_after=5.0)
        last = _epoch(request.headers.get("last-event-id", ""))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(last), media_type="text/event-stream", headers=headers)

    def heard(self, event: Event) -> None:
        """Tell every watcher of a write."""
        message = _message("config.changed", event.epoch, changed_event.as_json(event))
        self._past.append((event.epoch, message))
        self._tell(message)

    def reset(self) -> None:
        """Tell every watcher that writes were missed."""
        self._past.clear()
        self._tell(self._reset())

    def leave(self) -> None:
        """End every stream: the process is going, and watchers come back to another."""
        self._left = True
        self._tell(None)

    async def _stream(self, last: int | None) -> AsyncIterator[bytes]:
        messages = Messages(BEHIND)
        missed = self._since(last)
        self._watchers.add(messages)  # at once: what is written while a slow client is sent the rest comes after it
        try:
            for message in missed:
                yield message
            while (coming := await _next(messages)) is not None:
                yield coming
        finally:
            self._watchers.discard(messages)

    def _since(self, last: int | None) -> list[bytes]:
        """What a watcher that saw epoch ``last`` is sent first."""
        hello = f"retry: {RETRY_MS}\n: epoch {self._state().epoch}\n\n".encode()
        if last is None or last == self._state().epoch:
            return [hello]
        missed = [message for epoch, message in self._past if epoch > last]
        complete = len(missed) == self._state().epoch - last
        return [hello, *missed] if complete else [hello, self._reset()]

    def _reset(self) -> bytes:
        epoch = self._state().epoch
        return _message("config.reset", epoch, b'{"epoch":%d}' % epoch)

    def _tell(self, message: bytes | None) -> None:
        for messages in list(self._watchers):
            if messages.full() or message is None:
                self._watchers.discard(messages)
                while not messages.empty():
                    messages.get_nowait()
                messages.put_nowait(None)
            else:
                messages.put_nowait(message)


async def _next(messages: Messages) -> bytes | None:
    try:
        async with asyncio.timeout(PING_S):
            return await messages.get()
    except TimeoutError:
        return b": still here\n\n"


def _message(kind: str, epoch: int, data: bytes) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind.encode(), epoch, data)


def _epoch(last_event_id: str) -> int | None:
    if not last_event_id.strip():
        return None
    try:
        return max(0, int(last_event_id))
    except ValueError:
        raise InvalidInputError(
            "Last-Event-ID is no epoch.", field="Last-Event-ID", hint="Send the id of the last event, or leave it out."
        ) from None
