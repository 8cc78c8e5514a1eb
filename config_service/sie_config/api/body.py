"""The body of a request to ``/v1/configs``: up to a limit, and as it is. None is so long that packing it would help."""

from __future__ import annotations

from starlette.requests import Request

from sie_broker import http_body
from sie_sdk.errors import UnsupportedMediaTypeError


async def read_body(request: Request, limit: int) -> bytes:
    """The request body.

    Raises:
        PayloadTooLargeError: it is over ``limit`` bytes.
        UnsupportedMediaTypeError: it came packed.
        InvalidInputError: the caller hung up before its end.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"The body is encoded as {encoding[:64]!r}.",
            field="Content-Encoding",
            limit="identity",
            hint="Send it as it is.",
            accept_encoding=["identity"],
        )
    return await http_body.read_body(request, limit)
