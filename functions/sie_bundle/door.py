"""The bundle as a plain CloudEvents function over HTTP: demand sessions, single events and readiness.

A ``work.available`` event is a demand session: held open until its absolute end, or until the worker drains; it routes
no work, its being open is what scales. Any other event is an inference request, answered with the result event, so
that a Trigger, ``kn event send`` or curl can drive the bundle directly.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_broker import envelope
from sie_broker.contract import Reply, Work
from sie_bundle.presence import Presence
from sie_config.registry import Registry, lane_of
from sie_sdk import refusals, replies, wire
from sie_sdk.errors import InvalidInputError, SIEError, UnavailableError

DEMAND = "dev.sie.work.available.v1"
SESSION = "dev.sie.work.session.v1"
OPERATIONS = {envelope.work_type(operation): operation for operation in wire.PARSERS}
"""The operation of each inference event, ``dev.sie.encode.v1`` for instance."""


class Door:
    """The HTTP side of one worker. ``run`` computes a request; ``draining`` ends the open sessions."""

    def __init__(self, presence: Presence, registry: Registry, run: Callable[[Work], Awaitable[bytes]]) -> None:
        self.draining = asyncio.Event()
        self._presence = presence
        self._registry = registry
        self._run = run

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[Route("/", self.event, methods=["POST"]), Route("/readyz", self.ready, methods=["GET"])],
            exception_handlers={SIEError: _refuse},
        )

    async def ready(self, request: Request) -> Response:
        """200 when the engine is up and work is being pulled."""
        if self._presence.state != "ready":
            raise UnavailableError(f"The worker is {self._presence.state}.", retry_after=1.0)
        return Response(b"ok")

    async def event(self, request: Request) -> Response:
        """One CloudEvent, binary mode."""
        if request.headers.get("ce-type") == DEMAND:
            return await self._session(request)
        return await self._infer(request)

    async def _session(self, request: Request) -> Response:
        try:
            end = datetime.fromisoformat(request.headers["ce-holduntil"]).timestamp()
        except (KeyError, ValueError):
            raise InvalidInputError(
                "A demand session needs ce-holduntil, an RFC 3339 time.", field="holduntil"
            ) from None
        gone = asyncio.create_task(_disconnected(request))
        drained = asyncio.create_task(self.draining.wait())
        await asyncio.wait({gone, drained}, timeout=end - time.time(), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        drained.cancel()
        state = self._presence.now()
        body = {"worker": state.worker, "draining": self.draining.is_set(), "completed": state.completed}
        return _event(SESSION, uuid.uuid4().hex, state.worker, msgspec.json.encode(body), wire.JSON)

    async def _infer(self, request: Request) -> Response:
        event_id = request.headers.get("ce-id", "")
        operation = OPERATIONS.get(request.headers.get("ce-type", ""))
        if not event_id or operation is None:
            raise InvalidInputError(
                "This is no inference event.",
                field="ce-type" if event_id else "ce-id",
                limit=", ".join(OPERATIONS),
                hint=f"Send ce-id, ce-model and as ce-type one of {', '.join(OPERATIONS)}.",
            )
        spec = self._registry.resolve(request.headers.get("ce-model", ""))
        body = await request.body()
        if wire.body_type(request.headers.get("content-type")) == wire.JSON:
            body = wire.request_body(wire.PARSERS[operation](body, wire.JSON))
        work = Work(id=event_id, op=operation, lane=lane_of(spec), model=spec.id, data=body, time=time.time())
        answer = await self._run(work)
        media = wire.media_type(request.headers.get("accept"), request.headers.get("content-type"))
        data = answer if media == wire.MSGPACK else replies.to_json(answer)
        return _event(envelope.RESULT_TYPE, event_id, self._presence.worker, data, media)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(kind: str, event_id: str, worker: str, data: bytes, media: str) -> Response:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": envelope.escape(event_id),
        "ce-source": f"/bundle/{worker}",
        "ce-type": kind,
    }
    return Response(data, 200, headers, media)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, SIEError)
    failed = Reply(id="", data=refusals.error_body(error), status=error.status)
    return Response(failed.data, failed.status, {"X-SIE-Error-Code": error.code}, wire.JSON)
