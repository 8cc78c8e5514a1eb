"""Who may read the catalogue and who may change it: bearer tokens, compared in constant time.

Owns the two rights and their refusals. Which route needs which is said where the route is.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from sie_sdk.errors import ForbiddenError, UnauthorizedError

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
CHALLENGE: Final = 'Bearer realm="sie-config"'


class Access:
    """The rights that tokens give. Each argument is one or, while they are being changed, several with commas between.

    Args:
        admin: ``SIE_ADMIN_TOKEN``: these write and read; without any, nobody writes.
        read: ``SIE_CONFIG_READ_TOKEN``: these read; without any, everybody does.
    """

    def __init__(self, admin: str = "", read: str = "") -> None:
        self._admin = _tokens(admin)
        self._read = _tokens(read)

    def may_read(self, authorization: str | None) -> None:
        """Let a reader pass.

        Raises:
            UnauthorizedError: a token is asked for, and this is none of those.
        """
        if self._read:
            given = _bearer(authorization)
            if not (_among(given, self._read) | _among(given, self._admin)):
                raise _unauthorized(given, "read the catalogue", "SIE_CONFIG_READ_TOKEN")

    def may_write(self, authorization: str | None) -> None:
        """Let a writer pass.

        Raises:
            ForbiddenError: nobody writes here, or the token is for reading.
            UnauthorizedError: it is no token that is known here.
        """
        if not self._admin:
            raise ForbiddenError(
                "Writes are off: this config service has no SIE_ADMIN_TOKEN.",
                field="Authorization",
                hint="Start it with SIE_ADMIN_TOKEN set, and send that as a bearer token.",
            )
        given = _bearer(authorization)
        writes, reads = _among(given, self._admin), _among(given, self._read)
        if not writes and reads:
            raise ForbiddenError(
                "This token is for reading.", field="Authorization", hint="Writes take the SIE_ADMIN_TOKEN."
            )
        if not writes:
            raise _unauthorized(given, "change the catalogue", "SIE_ADMIN_TOKEN")

    def reading(self, endpoint: Endpoint) -> Endpoint:
        """``endpoint`` for those who may read."""

        async def guarded(request: Request) -> Response:
            self.may_read(request.headers.get("authorization"))
            return await endpoint(request)

        return guarded

    def writing(self, endpoint: Endpoint) -> Endpoint:
        """``endpoint`` for those who may write."""

        async def guarded(request: Request) -> Response:
            self.may_write(request.headers.get("authorization"))
            return await endpoint(request)

        return guarded


def _tokens(setting: str) -> tuple[bytes, ...]:
    return tuple(token.encode() for each in setting.split(",") if (token := each.strip()))


def _bearer(authorization: str | None) -> bytes:
    """The token of the header; empty where there is none, which is no token."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _among(given: bytes, tokens: tuple[bytes, ...]) -> bool:
    """Whether it is one of them; takes as long whichever it is."""
    return sum(hmac.compare_digest(given, token) for token in tokens) > 0


def _unauthorized(given: bytes, deed: str, setting: str) -> UnauthorizedError:
    return UnauthorizedError(
        f"This token may not {deed}." if given else f"A token is needed to {deed}.",
        field="Authorization",
        hint=f"Send Authorization: Bearer <{setting}>.",
        challenge=f'{CHALLENGE}, error="invalid_token"' if given else CHALLENGE,
    )
