"""The short way to the routes where work is asked for: past the router, whose layers cost more than our own code does.

Owns the recognition of such a request. Everything else, a wrong method on these paths included, goes the router's way.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_ingress import answer
from sie_sdk.errors import SIEError
from sie_sdk.types import Operation

_INFERENCE = re.compile(r"/v1/(encode|score|extract)/(.+)", re.DOTALL)


class Express:
    """ASGI middleware, the last before the router. ``serve`` is where the router's inference routes lead too.

    ``dialects``: the same for a POST to one of these paths, whose errors are answers already.
    """

    def __init__(
        self,
        app: ASGIApp,
        serve: Callable[[Operation, Request], Awaitable[Response]],
        dialects: Mapping[str, Callable[[Request], Awaitable[Response]]],
    ) -> None:
        self._app = app
        self._serve = serve
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if (speak := self._dialects.get(scope["path"])) is not None:
            response = await speak(Request(scope, receive))
            return await response(scope, receive, send)
        if (found := _INFERENCE.fullmatch(scope["path"])) is None:
            return await self._app(scope, receive, send)
        operation, scope["path_params"] = found[1], {"model": found[2]}
        try:
            response = await self._serve(operation, Request(scope, receive))  # type: ignore[arg-type]  # by the pattern
        except SIEError as error:
            response = answer.refuse_in(scope, error)
        return await response(scope, receive, send)
