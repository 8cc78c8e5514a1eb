"""From replies, jobs and errors to HTTP: status, headers, and the format the caller asked for.

Owns the headers that say something about a result, a job or an error, and the one place where an unknown exception
becomes a fixed line. What every answer carries is ``identity``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sie_broker import http_refusals
from sie_broker.jobs import Job
from sie_broker.records import Reply
from sie_config.registry import Registry
from sie_ingress import published
from sie_ingress.beside import beside
from sie_ingress.headers import preferences
from sie_ingress.metrics import Metrics
from sie_sdk import refusals, replies, results, wire
from sie_sdk.errors import InvalidInputError, ModelNotFoundError, PayloadTooLargeError, SIEError
from sie_sdk.results import Head
from sie_sdk.types import JobStatus

T = TypeVar("T")

log = logging.getLogger("sie.ingress")

TOLD_LATE_S = 10.0
"""So late a cold start is no longer told of as if it were on time."""

_TIMES = {
    b"x-queue-time": "queue_ms",
    b"x-tokenization-time": "tokenization_ms",
    b"x-batch-wait-time": "batch_wait_ms",
    b"x-inference-time": "inference_ms",
    b"x-postprocessing-time": "postprocessing_ms",
    b"x-total-time": "total_ms",
}

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""


class Answers:
    """Turns workers' replies into answers, and lets the metrics know of them.

    ``max_json_bytes``: the largest of which JSON is made.
    """

    def __init__(self, registry: Registry, metrics: Metrics, max_json_bytes: int) -> None:
        self._registry = registry
        self._metrics = metrics
        self._max_json_bytes = max_json_bytes

    async def from_reply(self, reply: Reply, accept: str | None, own: str | None) -> Response:
        """A worker's reply, passed on as it is; only its head is read, unless the caller wants JSON.

        ``accept``: the format the caller asked for; ``own``: the one it wrote in.

        Raises:
            SIEError: the reply is one.
        """
        if reply.status >= 400:
            raise refusals.read_error(reply.status, {"content-type": wire.JSON}, reply.data)
        media = wire.media_type(accept, own)
        body = await self.in_json(reply.data, replies.to_json) if media == wire.JSON else reply.data
        return self.told(Response(body, media_type=media), reply)

    def told(self, response: Response, reply: Reply) -> Response:
        """The response with the headers of a result: who computed it, with what, in what time."""
        response.raw_headers[:0] = self._computed(reply)
        return response

    async def in_json(self, data: bytes, write: Callable[[bytes], T]) -> T:
        """What ``write`` makes of a result: JSON, in whatever dialect. Of a large one beside the event loop.

        Raises:
            PayloadTooLargeError: it takes more memory than there is.
        """
        if len(data) > self._max_json_bytes:
            raise PayloadTooLargeError(
                f"The answer takes {len(data)} bytes before it is JSON.",
                field="items",
                limit=self._max_json_bytes,
                hint="Ask for msgpack (Accept: application/msgpack) where that is spoken, or for fewer items at once.",
            )
        return await beside(len(data), lambda: write(data))  # while it is made it takes twelve times its size

    def _computed(self, reply: Reply) -> RawHeaders:
        head = results.read_head(reply.data)
        # In the loop's next turn, when the answer has left.
        asyncio.get_running_loop().call_soon(self._metrics.computed, reply.id, head)
        headers = [(b"x-sie-worker", reply.worker.encode("latin-1")), *_measured(head)]
        with suppress(ModelNotFoundError):  # taken out of the catalogue since
            revision = self._registry.model(head.model).revision
            headers.append((b"x-sie-model-revision", revision.encode("latin-1")))
        return headers


def _measured(head: Head) -> RawHeaders:
    """Times (in ms) and units of a result as headers (wire protocol 2.4)."""
    headers = [(name, b"%.3f" % getattr(head.timing, field)) for name, field in _TIMES.items()]
    headers.append((b"x-sie-units-input-tokens", b"%d" % head.usage.input_tokens))
    if head.usage.pairs:
        headers.append((b"x-sie-units-pairs", b"%d" % head.usage.pairs))
    return headers


def from_job(job: Job, retry_after: float, honoured: str | None, late_s: float = 0.0) -> Response:
    """202: the work is queued; where to ask and when. ``honoured``: what was of the request's ``Prefer``.

    ``late_s``: how long its first worker should have been there.
    """
    expected = f"its answer is expected in about {retry_after:.0f} s"
    if late_s >= TOLD_LATE_S:
        expected = f"its first worker should have been there {late_s:.0f} s ago, and may still come"
    message = f"Your job is queued; {expected}."
    status = JobStatus(id=job.id, state="queued", retry_after_s=round(retry_after, 1), message=message)
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": http_refusals.seconds(retry_after)}
    if honoured is not None:
        headers["Preference-Applied"] = honoured
    return Response(replies.job_body(status), 202, headers, wire.JSON)


def prefer_wait(prefer: str | None, limit_s: float) -> float | None:
    """Seconds of ``Prefer: wait=N`` (RFC 7240), at most ``limit_s``; None when the caller has no preference."""
    if not prefer or (value := preferences(prefer).get("wait")) is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidInputError(
            f"Prefer: wait={value} is not a number of seconds.", field="Prefer", hint="Example: Prefer: wait=10"
        )
    return min(seconds, limit_s)


def waited(held_s: float | None) -> str | None:
    """The preference to wait that was honoured, as the answer says it."""
    return None if held_s is None else f"wait={held_s:g}"


def prefers_job(prefer: str | None) -> bool:
    """Whether the caller asked for a job, whatever it might wait for: ``Prefer: respond-async``."""
    return "respond-async" in preferences(prefer)


def refuse(error: SIEError, path: str = "") -> Response:
    """A typed error as an answer. On the pools' paths a ``detail`` object stands beside it: without one, published
    clients fail there."""
    return http_refusals.refused(error, detail=path.startswith("/v1/pools"))


def refuse_in(scope: Scope, error: SIEError) -> Response:
    """As `refuse`, in the words of the client that sent the request of ``scope``."""
    return refuse(published.told(error) if published.asks(scope) else error, scope["path"])


async def refuse_typed(request: Request, error: Exception) -> Response:
    """Exception handler for `SIEError`."""
    assert isinstance(error, SIEError)
    return refuse_in(request.scope, error)


async def refuse_http(request: Request, error: Exception) -> Response:
    """Exception handler for the router's own 404 and 405."""
    assert isinstance(error, HTTPException)
    return refuse(http_refusals.of_router(request, error, "See GET /v1/models."), request.url.path)


async def refuse_unknown(request: Request, error: Exception) -> Response:
    """Exception handler for everything else; the trace goes to the log (uvicorn's), never to the caller."""
    answer = refuse(http_refusals.unknown(), request.url.path)
    # This answer is sent from outside of the middleware.
    for name, value in request.scope.get("sie.identity", ()):
        answer.headers[name.decode()] = value.decode()
    log.error("request %s failed: %s; its trace follows", answer.headers.get("x-request-id"), type(error).__name__)
    return answer


def json(value: object) -> Response:
    """Any record as a JSON answer."""
    return Response(msgspec.json.encode(value), media_type=wire.JSON)
