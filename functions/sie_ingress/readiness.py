"""Whether this ingress accepts requests, and where those wait that come before it does.

A process listens before it knows the catalogue, for whoever started it asks whether it lives. A request that came then
would be told that its model does not exist, so it waits for the first catalogue. Who holds requests later is ``held``.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_ingress import answer
from sie_ingress.held import Held
from sie_sdk.errors import UnavailableError

PATIENCE_S = 10.0
"""How long a request waits for the catalogue; most of them do for some milliseconds."""
ALWAYS = frozenset({"/", "/health", "/healthz", "/livez", "/readyz", "/metrics"})
"""What answers a GET from the start on: it tells of this process, not of models."""


class Readiness:
    """Whether requests are accepted; ``/readyz`` answers 503 before and while draining."""

    def __init__(self) -> None:
        self.held = Held()
        self.begun = False
        """Whether requests were ever accepted: who came then is answered, whatever happens next."""
        self._left = False
        self._told = asyncio.Event()
        """Set once nobody need wait for the begin any more."""

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self.begun and not self._left

    def begin(self) -> None:
        """The catalogue is known: requests are accepted, and those that came before are now."""
        self.begun = True
        self._told.set()

    def close(self) -> None:
        """No new requests; those that are held wait on for their answers."""
        self._left = True
        self._told.set()

    def leave(self) -> None:
        """No new requests; those that are held get a job instead of being cut at the end of the drain."""
        self.close()
        self.held.leave()

    async def accept(self, patience_s: float = PATIENCE_S) -> None:
        """Return once requests are accepted.

        Raises:
            UnavailableError: they are not within ``patience_s``, or this process leaves before it ever was ready.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._told.wait()
        if not self.begun:
            raise UnavailableError(
                "This ingress has not read the catalogue yet.",
                hint="Ask again. If it stays so, the config service or NATS does not answer: look at their logs.",
                retry_after=1.0,
            )

    async def __call__(self, request: Request) -> Response:
        if not self.ready:
            raise UnavailableError("Not ready.", retry_after=1.0)
        return Response(b"ok", media_type="text/plain")


class Begun:
    """ASGI middleware: lets a request wait until ``readiness`` has begun, as `Readiness.accept` has it."""

    def __init__(self, app: ASGIApp, readiness: Readiness) -> None:
        self._app = app
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._readiness.begun and scope["type"] == "http" and not _always(scope):
            try:
                await self._readiness.accept()
            except UnavailableError as error:
                return await answer.refuse_in(scope, error)(scope, receive, send)
        return await self._app(scope, receive, send)


def _always(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and scope["path"] in ALWAYS
