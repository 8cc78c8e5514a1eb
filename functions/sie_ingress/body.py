"""The body of a request, up to a limit."""

from __future__ import annotations

import io

from starlette.requests import Request

from sie_sdk.errors import PayloadTooLargeError


async def read_body(request: Request, limit: int) -> bytes:
    """The request body.

    Raises:
        PayloadTooLargeError: it is over ``limit`` bytes; a declared length is refused before a byte is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    first, size, whole = b"", 0, io.BytesIO()
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
    return whole.getvalue() or first


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body is over {limit} bytes.", field="body", limit=limit, hint="Send fewer items per request."
    )
