"""The body of a request, up to a limit."""

from __future__ import annotations

import io

from starlette.requests import ClientDisconnect, Request

from sie_ingress import compression
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError

_DIGITS = 18
"""A declared length of more is over any limit, and Python reads no number of thousands of digits."""


async def read_body(request: Request, limit: int) -> bytes:
    """The request body, unpacked if it came packed.

    Raises:
        PayloadTooLargeError: it is over ``limit`` bytes, as it came or unpacked; a declared length is refused before a
            byte is read.
        UnsupportedMediaTypeError: its ``Content-Encoding`` is not known.
        InvalidInputError: the caller hung up before its end; nobody reads the refusal, but it is counted as one.
    """
    declared, packed = b"", None
    for name, value in request.scope["headers"]:
        if name == b"content-length":
            declared = value
        elif name == b"content-encoding":
            packed = compression.encoding_of(value.decode("latin-1"))
    if declared.isdigit() and (len(declared) > _DIGITS or int(declared) > limit):
        raise _too_large(limit)
    first, size, whole = b"", 0, io.BytesIO()
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            if not first:
                first = chunk
            elif chunk:
                if not whole.tell():
                    whole.write(first)
                whole.write(chunk)
    except ClientDisconnect:
        raise InvalidInputError("The connection was closed before the end of the body.", field="body") from None
    body = whole.getvalue() or first
    return body if packed is None else await compression.unpacked(body, packed, limit)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body is over {limit} bytes.", field="body", limit=limit, hint="Send fewer items per request."
    )
