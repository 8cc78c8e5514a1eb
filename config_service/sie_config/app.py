"""The config service's HTTP API: what is in the catalogue. Reads only, so far; the files are the source of truth."""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_config.registry import Registry
from sie_sdk import wire
from sie_sdk.errors import SIEError


def app(registry: Registry) -> Starlette:
    """The ASGI application over ``registry``."""

    async def models(request: Request) -> Response:
        return _json({"epoch": registry.epoch, "models": registry.specs()})

    async def model(request: Request) -> Response:
        return _json(registry.model(request.path_params["model"]))

    async def ready(request: Request) -> Response:
        return Response(b"ok")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, SIEError)
        return Response(wire.error_body(error), status_code=error.status, media_type="application/json")

    return Starlette(
        routes=[
            Route("/readyz", ready),
            Route("/v1/configs/models", models),
            Route("/v1/configs/models/{model:path}", model),
        ],
        exception_handlers={SIEError: refuse},
    )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
