"""``POST /v1/events``: CloudEvents of anybody, in binary or structured mode or in a batch, and their answers.

Owns the way there of events that are posted to ``/``, and the answers, which keep the delivery contract of a Knative
Trigger: 2xx only once the work is durable, 4xx for what no retry will mend, 429 and 503 for what one may. What an event
is and how it is placed stands in ``event_requests``.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_broker import clock, http_refusals
from sie_broker.events import binding, exchange
from sie_broker.jobs import Job
from sie_broker.records import Reply
from sie_ingress import answer, memory
from sie_ingress.answer import Answers
from sie_ingress.beside import beside
from sie_ingress.body import read_body
from sie_ingress.event_requests import EventRequests, Wanted
from sie_ingress.headers import by_name, preferences
from sie_ingress.identity import trace_of
from sie_ingress.lanes import Lanes
from sie_ingress.settings import Settings
from sie_sdk import refusals, wire
from sie_sdk.errors import SIEError

ROUTE = "/v1/events"
"""Where events are posted."""
_AT_ONCE = 32


class Events:
    """The events route."""

    def __init__(self, requests: EventRequests, lanes: Lanes, answers: Answers, settings: Settings) -> None:
        self._requests = requests
        self._lanes = lanes
        self._answers = answers
        self._settings = settings

    async def serve(self, request: Request) -> Response:
        """Accept what came, or refuse it in terms that its sender understands."""
        try:
            body = await read_body(request, self._settings.max_body_bytes)
            events = await beside(len(body), partial(binding.from_http, request.headers, body))
            reply_to = request.query_params.get("replyto", "")
            if binding.is_batch(request.headers):
                return await self._batch(
                    request,
                    [
                        await self._requests.check(event, clock.now(), f"[{place}].", reply_to=reply_to)
                        for place, event in enumerate(events)
                    ],
                )
            prefix, trace = binding.prefix(request.headers), trace_of(request.scope)
            wanted = await self._requests.check(events[0], clock.now(), prefix, trace, reply_to)
            return await self._one(request, wanted)
        except SIEError as error:
            refused = answer.refuse(error)
            refused.status_code = exchange.http_status(refused.status_code)
            return refused

    async def _one(self, request: Request, wanted: Wanted) -> Response:
        held = self._preferred(request)
        outcome = await self._requests.place(wanted, held or 0.0, memory.of(request.scope).take)
        if isinstance(outcome, Job):
            return await self._accepted(request, wanted, held)
        return await self._result(request, wanted, outcome)

    def _preferred(self, request: Request) -> float | None:
        """How long to hold, for a sender that takes an answer: ``Prefer: wait=N``, or ``reply`` as Knative's do."""
        limit = self._settings.request_timeout_s
        prefer = by_name(request.scope).get("prefer")
        held = answer.prefer_wait(prefer, limit)
        return limit if held is None and "reply" in preferences(prefer) else held

    async def _accepted(self, request: Request, wanted: Wanted, held: float | None) -> Response:
        """202 ends the exchange, so it has no body that could be taken for an event."""
        whole = wanted.checked.whole
        headers = {
            "Location": f"/v1/jobs/{whole.id}",
            "Retry-After": http_refusals.seconds(await self._lanes.retry_after(whole.lane)),
        }
        if held is not None and wanted.sink is None:
            headers["Preference-Applied"] = f"wait={held:g}"
        return Response(b"", 202, headers)

    async def _result(self, request: Request, wanted: Wanted, reply: Reply) -> Response:
        accept = by_name(request.scope).get("accept", "")
        headers: dict[str, str] = {}
        if reply.status >= 400:
            error = refusals.read_error(reply.status, {"content-type": wire.JSON}, reply.data)
            headers = {name: value for name, value in answer.refuse(error).headers.items() if name in _OF_ERRORS}
        media = wire.media_type(accept, wanted.media)
        write = partial(
            _written,
            msgspec.structs.replace(reply, cause=wanted.cause),
            media,
            f"/v1/jobs/{wanted.job}",
            clock.now(),
            wanted.checked.whole.traceparent,
            structured=binding.wants_structured(accept),
        )
        if media == wire.JSON or binding.wants_structured(accept):
            own, body = await self._answers.in_json(reply.data, lambda _: write())
        else:
            own, body = write()
        response = Response(body, exchange.http_status(reply.status), headers | own)
        return response if reply.status >= 400 else self._answers.told(response, reply)

    async def _batch(self, request: Request, wanted: list[Wanted]) -> Response:
        """All of it, or an error: what was accepted before the error is the same job when the batch comes again."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def place(place: int, each: Wanted) -> SIEError | None:
            async with room:
                try:
                    await self._requests.place(each)
                except SIEError as error:
                    error.field = f"[{place}].{error.field}" if error.field else f"[{place}]"
                    return error
            return None

        outcomes = await asyncio.gather(*(place(number, each) for number, each in enumerate(wanted)))
        failures = [error for error in outcomes if error is not None]
        if failures:
            # What may get better comes first: who is told that gives nothing up.
            raise max(failures, key=lambda error: (error.retry_after is not None, error.retry_after or 0.0))
        jobs = [{"id": each.job, "location": f"/v1/jobs/{each.job}"} for each in wanted]
        return Response(msgspec.json.encode({"jobs": jobs}), 202, media_type=wire.JSON)


class EventsAtRoot:
    """ASGI middleware: an event that is posted to ``/`` goes the way of those at ``/v1/events``.

    Knative's sources and Triggers post there when they are given a Service (``ksvc:``). What else is posted to ``/`` is
    another dialect's, and no event.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        at_root = scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "POST"
        if at_root and binding.is_event(Headers(scope=scope)):
            scope["path"] = ROUTE
        await self._app(scope, receive, send)


_OF_ERRORS = ("x-sie-error-code", "retry-after")


def _written(
    reply: Reply, media: wire.MediaType, source: str, at: float, traceparent: str | None, *, structured: bool
) -> binding.Message:
    """The result event on HTTP; a megabyte of msgpack becomes JSON in a tenth of a second."""
    return binding.to_http(exchange.result(reply, media, source, at, traceparent), structured)
