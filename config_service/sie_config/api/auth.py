"""Who may read the catalogue and who may change it: bearer tokens, compared in constant time.

Owns the two rights and their refusals, and how a token is read and compared, which the ingress does likewise. Which
route needs which right is said where the route is.
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
        self._admin = tokens_of(admin)
        self._read = tokens_of(read)

    def may_read(self, authorization: str | None) -> None:
        """Let a reader pass.

        Raises:
            UnauthorizedError: a token is asked for, and this is none of those.
        """
        if self._read:
            given = bearer_of(authorization)
            if not (is_among(given, self._read) | is_among(given, self._admin)):
                raise unauthorized(given, "read the catalogue", "SIE_CONFIG_READ_TOKEN", CHALLENGE)

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
        given = bearer_of(authorization)
        writes, reads = is_among(given, self._admin), is_among(given, self._read)
        if not writes and reads:
            raise ForbiddenError(
                "This token is for reading.", field="Authorization", hint="Writes take the SIE_ADMIN_TOKEN."
            )
        if not writes:
            raise unauthorized(given, "change the catalogue", "SIE_ADMIN_TOKEN", CHALLENGE)

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


def tokens_of(setting: str) -> tuple[bytes, ...]:
    """The tokens in a setting, with commas between; none in an empty one."""
    # What an environment holds that is no UTF-8 is bytes all the same.
    return tuple(token.encode(errors="surrogateescape") for each in setting.split(",") if (token := each.strip()))


def bearer_of(authorization: str | None) -> bytes:
    """The token of the header; empty where there is none, which is no token."""
    # Blanks alone: what else Python strips may be a byte of UTF-8 here, where each byte is a letter.
    scheme, _, token = (authorization or "").strip(" \t").partition(" ")
    return token.strip(" \t").encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def is_among(given: bytes, tokens: tuple[bytes, ...]) -> bool:
    """Whether it is one of them; takes as long whichever it is."""
    return sum(hmac.compare_digest(given, token) for token in tokens) > 0


def unauthorized(given: bytes, deed: str, token: str, challenge: str) -> UnauthorizedError:
    """The refusal of who ``given`` is no token of, or who sent none. ``token``: what would have let it ``deed``."""
    return UnauthorizedError(
        f"This token may not {deed}." if given else f"A token is needed to {deed}.",
        field="Authorization",
        hint=f"Send Authorization: Bearer <{token}>.",
        challenge=f'{challenge}, error="invalid_token"' if given else challenge,
    )
