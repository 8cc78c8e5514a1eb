"""The config service's HTTP API: what is in the catalogue. Reads only, so far; the files are the source of truth."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_config.reads import Reads
from sie_config.registry import Registry
from sie_sdk import refusals, wire
from sie_sdk.errors import SIEError


def app(registry: Registry) -> Starlette:
    """The ASGI application over ``registry``."""

    async def ready(request: Request) -> Response:
        return Response(b"ok")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, SIEError)
        return Response(refusals.error_body(error), status_code=error.status, media_type=wire.JSON)

    return Starlette(
        routes=[Route("/readyz", ready), *Reads(registry).routes()],
        exception_handlers={SIEError: refuse},
    )
