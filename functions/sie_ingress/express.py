"""The short way to the inference routes: past the router, whose layers cost more than the request does in our own code.

Owns the recognition of such a request. Everything else, a wrong method on these paths included, goes the router's way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_ingress import answer
from sie_sdk.errors import SIEError
from sie_sdk.types import Operation

_INFERENCE = re.compile(r"/v1/(encode|score|extract)/(.+)", re.DOTALL)


class Express:
    """ASGI middleware, the last before the router. ``serve`` is where the router's inference routes lead too."""

    def __init__(self, app: ASGIApp, serve: Callable[[Operation, Request], Awaitable[Response]]) -> None:
        self._app = app
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _INFERENCE.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            return await self._app(scope, receive, send)
        operation, scope["path_params"] = found[1], {"model": found[2]}
        try:
            response = await self._serve(operation, Request(scope, receive))  # type: ignore[arg-type]  # by the pattern
        except SIEError as error:
            response = answer.refuse_in(scope, error)
        return await response(scope, receive, send)
