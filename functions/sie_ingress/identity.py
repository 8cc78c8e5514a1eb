"""What every answer carries, whatever it says: the request's id, this server's version, the caller's trace.

Owns the middleware that reads these from a request and puts them on its answer, and how exactly ``Retry-After`` may
be written for the one who asks; and the line of the log by which a failed request is found with its id. What the other
headers say is ``answer``'s.
"""

from __future__ import annotations

import logging
import math
import os
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sie_ingress import published, trace_context
from sie_ingress.trace_context import Trace
from sie_sdk.version import PROTOCOL_VERSION, __version__

log = logging.getLogger("sie.ingress.identity")

PATH = 200
"""Characters of a path that are logged."""
ORDINARY = (501, 503)
"""Of the errors that are not the caller's, those of which nobody has to look into the log: not here, and not now."""
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")
_OWN_CLIENT = b"sie-knative/"
_SERVER = [(b"x-sie-server-version", PROTOCOL_VERSION.encode()), (b"x-sie-version", __version__.encode())]


class Identified:
    """ASGI middleware around everything. In the scope it leaves what others go by: the trace, and who asks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        sent = dict(scope["headers"])
        given = sent.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex().encode()
        identity = [(b"x-request-id", request_id), (b"x-sie-request-id", request_id), *_SERVER]
        if b"traceparent" in sent and (trace := _read_trace(scope)) is not None:
            scope["sie.trace"] = trace
            identity += [(b"traceparent", trace.parent.encode()), (b"x-trace-id", trace.id.encode())]
        scope["sie.identity"] = identity
        scope["sie.published"] = is_published = published.SDK_VERSION.encode() in sent
        reads_fractions = is_published or sent.get(b"user-agent", b"").startswith(_OWN_CLIENT)

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if message["status"] >= 500 and message["status"] not in ORDINARY:
                    _log_failure(scope, request_id, message)
                if message["status"] >= 202 and not reads_fractions:
                    headers = [_whole_seconds(name, value) for name, value in headers]
                message["headers"] = [*headers, *identity]
            await send(message)

        return await self._app(scope, receive, identified)


def trace_of(scope: Scope) -> Trace | None:
    """The trace a request came with, if it was a valid one."""
    trace: Trace | None = scope.get("sie.trace")
    return trace


def works_on(scope: Scope, job: str) -> None:
    """Note the id under which the workers know a request."""
    scope["sie.job"] = job


def _log_failure(scope: Scope, request_id: bytes, message: Message) -> None:
    code = dict(message["headers"]).get(b"x-sie-error-code", b"").decode()
    what = f"{scope['method']} {scope['path'][:PATH]!r}: {message['status']} {code}"
    job = f", work {scope['sie.job']}" if "sie.job" in scope else ""
    log.warning("request %s failed: %s%s", request_id.decode(), what, job)


def _read_trace(scope: Scope) -> Trace | None:
    values: dict[bytes, list[str]] = {b"traceparent": [], b"tracestate": []}
    for name, value in scope["headers"]:
        if name in values:
            values[name].append(value.decode("latin-1"))
    return trace_context.read(values[b"traceparent"], values[b"tracestate"])


def _whole_seconds(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """``Retry-After`` as RFC 9110 (10.2.3) has it: rounded up. Other headers as they are."""
    return (name, str(math.ceil(float(value))).encode()) if name == b"retry-after" else (name, value)
