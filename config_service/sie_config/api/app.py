"""The config service as one ASGI application: which route leads where. Everything it needs is handed in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sie_broker import http_refusals
from sie_config.api.answers import Told
from sie_config.api.auth import Access
from sie_config.api.history import History
from sie_config.api.reads import Reads, bundles_of
from sie_config.api.writes import Writes
from sie_config.deployment import placement
from sie_config.epochs.writer import Writer
from sie_config.model import validation
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import NotFoundError, SIEError
from sie_sdk.version import __version__

NAME = "sie-config"
"""How its names begin; published gateways take no other's word."""
_REQUEST_ID = re.compile(rb"[\w.:/+=-]{1,128}")


def app(
    registry: Registry, writer: Writer, access: Access, name: str = NAME, further: Sequence[Route] = ()
) -> Starlette:
    """The ASGI application; its ``state.reads`` keeps itself ready.

    ``name``: this copy's; ``further``: routes of others, for those who may read.
    """

    async def alive(request: Request) -> Response:
        return Response(b"ok", media_type="text/plain")

    async def status(request: Request) -> Response:
        raise NotFoundError("Who serves a model is known to the ingress.", hint="GET the same path there.")

    told = Told(name, lambda spec: bundles_of(spec, registry), lambda spec: warnings(spec, registry))
    reads = Reads(registry, lambda: writer.state, access, writer=lambda: name if writer.leading else None)
    service = Starlette(
        routes=[
            *(Route(path, alive, methods=["GET"]) for path in ("/healthz", "/livez", "/readyz")),
            *further,
            Route("/v1/configs/models/{model:path}/status", access.reading(status), methods=["GET"]),
            *reads.routes(),
            *History(writer, access).routes(),
            *Writes(writer, access, told).routes(),
        ],
        middleware=[Middleware(Identified)],
        exception_handlers={SIEError: _refuse, HTTPException: _refuse_http, Exception: _refuse_unknown},
    )
    service.router.redirect_slashes = False
    service.state.reads = reads
    return service


def warnings(spec: ModelSpec, registry: Registry) -> Iterator[str]:
    """What is valid about a spec and yet perhaps not meant."""
    for doubt in validation.warnings(spec):
        yield str(doubt)
    if registry.deployment is not None:
        yield from placement.warnings(spec, registry.deployment)


class Identified:
    """ASGI middleware: every answer has the request's id, the caller's or a new one, and our version."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex().encode()
        scope["sie.identity"] = [(b"x-request-id", request_id), (b"x-sie-version", __version__.encode())]

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *scope["sie.identity"]]
            await send(message)

        return await self._app(scope, receive, identified)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, SIEError)
    return http_refusals.refused(error)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_refusals.refused(http_refusals.of_router(request, error, "See GET /v1/configs/models."))


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    """The trace goes to the log (uvicorn's). This answer is sent from outside of the middleware."""
    answer = http_refusals.refused(http_refusals.unknown())
    for name, value in request.scope.get("sie.identity", ()):
        answer.headers[name.decode()] = value.decode()
    return answer
