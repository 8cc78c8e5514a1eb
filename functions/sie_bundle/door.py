"""The bundle as a plain CloudEvents function over HTTP: demand sessions, single events and readiness.

A ``work.available`` event is a demand session: held open until its absolute end, or until the worker drains; it routes
no work, its being open is what scales. Any other event is an inference request, answered with the result event, so
that a Trigger, ``kn event send`` or curl can drive the bundle directly.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
from cloudevents.core.v1.event import CloudEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_broker import clock
from sie_broker.ending import end
from sie_broker.events import binding, event_format, exchange
from sie_broker.events.envelope import AVAILABLE_TYPE
from sie_broker.http_body import read_body
from sie_broker.records import Reply, Work
from sie_bundle.presence import Presence
from sie_bundle.settings import MAX_BODY_BYTES
from sie_bundle.worker import unexpected
from sie_config.model.profile import with_profile
from sie_config.registry import Registry, lane_of
from sie_sdk import refusals, wire
from sie_sdk.errors import SIEError, UnavailableError, UnsupportedMediaTypeError

SESSION = "dev.sie.work.session.v1"

LEAVING = "This worker is leaving."


class Door:
    """The HTTP side of one worker. ``run`` computes a request; ``draining`` ends the sessions, and nothing is taken."""

    def __init__(
        self,
        presence: Presence,
        registry: Registry,
        run: Callable[[Work], Awaitable[bytes]],
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.draining = asyncio.Event()
        self._max_body_bytes = max_body_bytes
        self._presence = presence
        self._registry = registry
        self._run = run
        self._in_hand: set[asyncio.Future[bytes]] = set()

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[Route("/", self.event, methods=["POST"]), Route("/readyz", self.ready, methods=["GET"])],
            exception_handlers={SIEError: _refuse},
        )

    async def drain(self, within_s: float) -> None:
        """End the sessions, take nothing more in, finish what is in hand; after ``within_s`` seconds it is refused."""
        self.draining.set()
        if self._in_hand:
            _, late = await asyncio.wait(self._in_hand, timeout=within_s)
            await end(*late)

    async def ready(self, request: Request) -> Response:
        """200 when the engine is up and work is being pulled."""
        if self._presence.state != "ready":
            raise UnavailableError(f"The worker is {self._presence.state}.", retry_after=1.0)
        return Response(b"ok")

    async def event(self, request: Request) -> Response:
        """One CloudEvent, in binary or structured mode."""
        if binding.is_batch(request.headers):
            raise UnsupportedMediaTypeError(
                "A bundle takes one event at a time.",
                field="Content-Type",
                hint="Send each in a request of its own, or the batch to POST /v1/events of the ingress.",
            )
        (event,) = binding.from_http(request.headers, await read_body(request, self._max_body_bytes))
        if event.get_type() == AVAILABLE_TYPE:
            return _answered(request, await self._session(request, event), 200, {})
        return await self._infer(request, event)

    async def _session(self, request: Request, event: CloudEvent) -> CloudEvent:
        until = event_format.instant("holduntil", exchange.extension(event, "holduntil")).timestamp()
        gone = asyncio.create_task(_disconnected(request))
        drained = asyncio.create_task(self.draining.wait())
        try:
            await asyncio.wait({gone, drained}, timeout=until - clock.now(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(gone, drained)
        state = self._presence.now()
        body = {"worker": state.worker, "draining": self.draining.is_set(), "completed": state.completed}
        attributes = {
            "specversion": "1.0",
            "id": uuid.uuid4().hex,
            "source": self._source,
            "type": SESSION,
            "time": datetime.now(UTC),
            "datacontenttype": wire.JSON,
        }
        return CloudEvent(attributes, msgspec.json.encode(body))

    async def _infer(self, request: Request, event: CloudEvent) -> Response:
        prefix, now = binding.prefix(request.headers), clock.now()
        asked, expiry = exchange.read(event, prefix), exchange.expiry(event, now, prefix)
        spec, body = self._registry.resolve(asked.model, f"{prefix}model"), asked.data
        parsed = wire.PARSERS[asked.operation](body, asked.media)
        wanted = with_profile(parsed, spec)
        if asked.media == wire.JSON or wanted is not parsed:
            body = wire.request_body(wanted)
        own_id, headers = event.get_id(), dict[str, str]()
        work = Work(own_id, asked.operation, lane_of(spec), spec.id, body, now, deadline=expiry)
        try:
            reply = Reply(id=own_id, data=await self._computed(request, work), cause=own_id)
        except Exception as failure:
            error = failure if isinstance(failure, SIEError) else unexpected(work)
            reply = Reply(id=own_id, data=refusals.error_body(error), status=error.status, cause=own_id)
            headers = _error_headers(error)
        media = wire.media_type(request.headers.get("accept"), asked.media)
        traceparent = exchange.extension(event, "traceparent") or None
        result = exchange.result(reply, media, self._source, clock.now(), traceparent)
        return _answered(request, result, exchange.http_status(reply.status), headers)

    async def _computed(self, request: Request, work: Work) -> bytes:
        """What comes of the work; given up when its sender hangs up, who sends it again if it is wanted.

        Raises:
            SIEError: what the sender should know.
        """
        if self.draining.is_set():
            raise UnavailableError(LEAVING, retry_after=1.0)
        computing, gone = asyncio.ensure_future(self._run(work)), asyncio.ensure_future(_disconnected(request))
        self._in_hand.add(computing)
        computing.add_done_callback(self._in_hand.discard)
        try:
            await asyncio.wait({computing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not computing.done():
                raise UnavailableError("The sender has hung up.")
            if computing.cancelled():  # not done when this worker has to go
                raise UnavailableError(LEAVING, retry_after=1.0)
            return computing.result()
        finally:
            await end(computing, gone)

    @property
    def _source(self) -> str:
        return f"/bundle/{self._presence.worker}"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answered(request: Request, event: CloudEvent, status: int, more: dict[str, str]) -> Response:
    headers, body = binding.to_http(event, binding.wants_structured(request.headers.get("accept", "")))
    return Response(body, status, headers | more)


def _error_headers(error: SIEError) -> dict[str, str]:
    headers = {"X-SIE-Error-Code": error.code}
    if error.retry_after is not None:
        headers["Retry-After"] = f"{error.retry_after:g}"
    return headers


async def _refuse(request: Request, error: Exception) -> Response:
    """What is no event, or none that can be served, gets no result event."""
    assert isinstance(error, SIEError)
    return Response(
        refusals.error_body(error), exchange.http_status(error.status), _error_headers(error), media_type=wire.JSON
    )
