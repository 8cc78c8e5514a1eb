"""The bodies of failed replies, for both ends: written from an error of the tree, read back into one.

Owns the JSON form and the four published forms that are read (wire protocol 3.1). Not here: the tree itself
(``errors``), bodies of replies that worked (``replies``), when to try again (``settle``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sie_sdk.errors import SIEError, UnavailableError, UnexpectedReplyError, from_wire

_to_json = msgspec.json.Encoder(enc_hook=str)
_any_from_msgpack = msgspec.msgpack.Decoder()
_any_from_json = msgspec.json.Decoder()


def error_body(error: SIEError, *, detail: bool = False) -> bytes:
    """The JSON body of an error reply: ``{"error": {code, message, ...}}``. Details unknown to JSON become text.

    With ``detail`` there is the short form ``{"detail": {code, message}}`` too.
    """
    short = {"detail": {"code": error.code, "message": error.message}} if detail else {}
    return _to_json.encode({"error": error.to_wire(), **short})


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> SIEError:
    """The error a reply of ``status`` stands for; reads the four body forms of wire protocol 3.1.

    ``headers`` are looked up in lower case. A body that follows none of the forms is an ``UnexpectedReplyError`` that
    shows its first bytes, except with status 429 or 503: a proxy's own "not now" may be tried again like the server's.
    """
    request_id = headers.get("x-request-id")
    retry_after = parse_retry_after(headers.get("retry-after"))
    wire = _error_object(headers.get("content-type"), body)
    if wire is None:
        error: SIEError = (
            UnavailableError(f"The server is not available (HTTP {status}: {_excerpt(body)}).", request_id=request_id)
            if status in (429, 503)
            else UnexpectedReplyError(
                f"HTTP {status} came with a body that is not an error of this protocol: {_excerpt(body)}.",
                hint="Check that base_url is the server and not a proxy or a login page.",
                request_id=request_id,
                http_status=status,
            )
        )
    else:
        if "code" not in wire and (code := headers.get("x-sie-error-code")):
            wire["code"] = code
        error = from_wire(wire, status=status, request_id=request_id)
    if retry_after is not None:
        error.retry_after = retry_after
    return error


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header, fractions allowed. HTTP dates and senseless numbers are None."""
    try:
        seconds = float(value) if value else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _error_object(content_type: str | None, body: bytes) -> dict[str, Any] | None:
    decoder = _any_from_msgpack if "msgpack" in (content_type or "").lower() else _any_from_json
    try:
        reply = decoder.decode(body)
    except (ValueError, RecursionError):
        return None
    wire = (reply.get("error") or reply.get("detail")) if isinstance(reply, dict) else None
    match wire:
        case dict():
            return {str(key): value for key, value in wire.items()}
        case str():
            return {"message": wire}
        case list():
            return {"message": "; ".join(map(str, wire))}
        case _:
            return None


def unexpected(body: bytes, expected: str, reason: Exception) -> UnexpectedReplyError:
    """The error for a reply that should have been ``expected`` and is not; it shows the body's first bytes."""
    return UnexpectedReplyError(
        f"The reply is not {expected} ({str(reason).rstrip('.')}); it begins {_excerpt(body)}.",
        hint="Check that base_url is the server and not a proxy.",
    )


def _excerpt(body: bytes) -> str:
    return repr(bytes(body[:120])) if body else "empty"
