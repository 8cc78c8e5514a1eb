"""The body of a request, up to a limit."""

from __future__ import annotations

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
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body is over {limit} bytes.", field="body", limit=limit, hint="Send fewer items per request."
    )
