"""Who may ask this ingress for anything: whoever sends one of its bearer tokens (``SIE_AUTH_TOKENS``), if it has any.

Owns what is open to everybody all the same, and the refusal of the rest before anything of a request is read. How
tokens are compared, and who of those that are let in may read the catalogue, is ``sie_config``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_config.api.auth import bearer_of, is_among, tokens_of, unauthorized
from sie_ingress.settings import Settings
from sie_sdk.errors import ConfigurationError, SIEError

OPEN: Final = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/livez", "/readyz"})
"""What answers a GET without a token: probes, which have none to send, and pages, which hold nothing of what is served
and ask for a token themselves."""
CATALOGUE: Final = "/v1/configs"
"""Whose readers may have a token of their own, which is good for nothing else."""
CHALLENGE: Final = 'Bearer realm="sie"'
POLICY_VIOLATION: Final = 1008


def asks(settings: Settings) -> bool:
    """Whether a token is asked for.

    Raises:
        ConfigurationError: there should be some and are none. Everybody would be let in.
    """
    if settings.auth_tokens and not tokens_of(settings.auth_tokens):
        raise ConfigurationError(
            "SIE_AUTH_TOKENS holds no token.",
            field="SIE_AUTH_TOKENS",
            hint="Tokens stand in it with commas between; leave it out to let everybody in.",
        )
    return bool(settings.auth_tokens)


class Authorized:
    """ASGI middleware, of requests and of websockets. ``refused``: an error as the route that was asked says it."""

    def __init__(self, app: ASGIApp, settings: Settings, refused: Callable[[Scope, SIEError], Response]) -> None:
        self._app = app
        self._tokens = tokens_of(settings.auth_tokens) + tokens_of(settings.admin_token)
        self._readers = self._tokens + tokens_of(settings.config_read_token)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope):
            return await self._app(scope, receive, send)
        given = bearer_of(Headers(scope=scope).get("authorization"))
        if is_among(given, self._readers if _of_catalogue(scope["path"]) else self._tokens):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # a server that can say no more
        error = unauthorized(given, "ask this server", "one of SIE_AUTH_TOKENS", CHALLENGE)
        error.hint = f"{error.hint} Our clients and `sie` take it as SIE_API_KEY."
        return await self._refused(scope, error)(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN


def _of_catalogue(path: str) -> bool:
    return path.startswith(f"{CATALOGUE}/")
