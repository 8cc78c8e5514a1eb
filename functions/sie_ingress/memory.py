"""How many bytes of bodies and answers an ingress holds at a time: what would go beyond is refused, and may come again.

Owns the count, from a body's first byte until its answer has been taken. Not here: how large one body or one answer may
be (``settings``).
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from sie_broker import http_protocol
from sie_sdk.errors import UnavailableError

SMALL_BYTES = 1024 * 1024
"""Who has no more of body and answer is never refused: thousands of such requests take less than a few large ones."""
AGAIN_S = 2.0
_SCOPE = "sie.memory"


class Memory:
    """``limit`` bytes for all requests together; ``sending``: what answered requests have still on the way;
    ``make_room``: breaks off those of them that are taken too slowly, until so many bytes are free."""

    def __init__(
        self,
        limit: int,
        sending: Callable[[], int] = http_protocol.unsent_bytes,
        make_room: Callable[[int], None] = http_protocol.make_room,
    ) -> None:
        self.held = 0
        self._limit = limit
        self._sending = sending
        self._make_room = make_room

    def check(self, size: int) -> None:
        """Whether there is room for ``size`` bytes more.

        Raises:
            UnavailableError: there is none now.
        """
        if self._over(size) > 0:
            self._make_room(self._over(size))
        if self._over(size) > 0:
            raise UnavailableError(
                "The server has as many large requests and answers in hand as it has memory for.",
                retry_after=AGAIN_S,
                hint="Send less at once.",
            )

    def _over(self, size: int) -> int:
        return self.held + size + self._sending() - self._limit


class Hold:
    """What one request holds. Without a `Memory` nothing is counted."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        self._size = 0

    def take(self, size: int) -> None:
        """Count ``size`` bytes more, until `release`; raises as `Memory.check`."""
        if self._memory is None:
            return
        if self._size + size > SMALL_BYTES:
            self._memory.check(size)
        self._size += size
        self._memory.held += size

    def release(self) -> None:
        """Nothing is held any more."""
        if self._memory is not None:
            self._memory.held -= self._size
            self._size = 0


def uncounted(size: int) -> None:
    """Takes nothing, where nothing is counted."""


class Bounded:
    """ASGI middleware: every request has its `Hold`, and lets go of it when it has been answered."""

    def __init__(self, app: ASGIApp, memory: Memory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_SCOPE] = hold = Hold(self._memory)
        try:
            await self._app(scope, receive, send)
        finally:
            hold.release()


def of(scope: Scope) -> Hold:
    """The hold of the request with this scope."""
    hold: Hold = scope.get(_SCOPE) or Hold()
    return hold
