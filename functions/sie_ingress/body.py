"""The body of a request to the ingress: up to a limit, and unpacked if it came packed."""

from __future__ import annotations

from starlette.requests import Request

from sie_broker import http_body
from sie_ingress import compression, memory


async def read_body(request: Request, limit: int) -> bytes:
    """The request body.

    Raises:
        PayloadTooLargeError: it is over ``limit`` bytes, as it came or unpacked.
        UnsupportedMediaTypeError: its ``Content-Encoding`` is not known.
        InvalidInputError: the caller hung up before its end.
        UnavailableError: there is no memory for it now.
    """
    hold = memory.of(request.scope)
    packed = [value for name, value in request.scope["headers"] if name == b"content-encoding"]
    if not packed:
        return await http_body.read_body(request, limit, hold.take)
    encoding = compression.encoding_of(b", ".join(packed).decode("latin-1"))
    body = await http_body.read_body(request, limit, hold.take)
    if encoding is not None:
        body = await compression.unpacked(body, encoding, limit)
        hold.take(len(body))
    return body
