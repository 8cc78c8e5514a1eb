"""The body of an HTTP request, up to a limit: the one way in which our functions read one."""

from __future__ import annotations

import io
from collections.abc import Callable

from starlette.requests import Request

from sie_sdk.errors import InvalidInputError, PayloadTooLargeError

_DIGITS = 18
"""A declared length of more is over any limit, and Python reads no number of thousands of digits."""


async def read_body(request: Request, limit: int, taken: Callable[[int], None] = lambda size: None) -> bytes:
    """The request body as it came; ``taken`` hears the size of each piece, and may refuse it.

    Raises:
        PayloadTooLargeError: it is over ``limit`` bytes; a declared length is refused before a byte is read.
        InvalidInputError: the caller hung up before its end; nobody reads the refusal, but it is counted as one.
    """
    declared = next((value for name, value in request.scope["headers"] if name == b"content-length"), b"")
    if declared.isdigit() and (len(declared) > _DIGITS or int(declared) > limit):
        raise too_large(limit)
    first, size, whole, more = b"", 0, io.BytesIO(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise InvalidInputError("The connection was closed before the end of the body.", field="body")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        taken(len(chunk))
        if not first:
            first = chunk
        elif chunk:
            if not whole.tell():
                whole.write(first)
            whole.write(chunk)
    return whole.getvalue() or first


def too_large(limit: int) -> PayloadTooLargeError:
    """The error for a body over ``limit`` bytes."""
    return PayloadTooLargeError(
        f"The request body is over {limit} bytes.", field="body", limit=limit, hint="Send less in one request."
    )
