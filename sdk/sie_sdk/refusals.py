"""The bodies of failed replies, for both ends: written from an error of the tree, read back into one.

Owns the JSON form and the four published forms that are read (wire protocol 3.1). Not here: the tree itself
(``errors``), bodies of replies that worked (``replies``), when to try again (``settle``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sie_sdk.errors import (
    DeadlineExceededError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    RateLimitedError,
    SIEError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedReplyError,
)

_to_json = msgspec.json.Encoder(enc_hook=str)
_any_from_msgpack = msgspec.msgpack.Decoder()
_any_from_json = msgspec.json.Decoder()
_LONGEST_S = 1e9
MAY_PASS = (429, 502, 503, 504)
"""Of errors that the same request may not get again. A proxy says them of itself, too: Knative's activator answers 502
for a server that is killed, and 504 for one that has not started in time. Both may have the request by then, which
makes no difference to one that has a key."""
_BY_STATUS: dict[int, type[SIEError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    429: RateLimitedError,
    503: UnavailableError,
    504: DeadlineExceededError,
}


def _tree(root: type[SIEError]) -> Iterator[type[SIEError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


BY_CODE: dict[str, type[SIEError]] = {cls.code: cls for cls in _tree(SIEError)}
"""Every error class of the tree under its stable code."""


def error_body(error: SIEError, *, detail: bool = False) -> bytes:
    """The JSON body of an error reply: ``{"error": {code, message, ...}}``. Details unknown to JSON become text.

    With ``detail`` there is the short form ``{"detail": {code, message}}`` too.
    """
    short = {"detail": {"code": error.code, "message": error.message}} if detail else {}
    return _to_json.encode({"error": error.to_wire(), **short})


def read_error(status: int, headers: Mapping[str, str], body: bytes) -> SIEError:
    """The error a reply of ``status`` stands for; reads the four body forms of wire protocol 3.1.

    ``headers`` are looked up in lower case. A body that follows none of the forms is an ``UnexpectedReplyError`` that
    shows its first bytes, except with a status of `MAY_PASS`: a proxy's own may be tried again like the server's.
    """
    request_id = headers.get("x-request-id")
    retry_after = parse_retry_after(headers.get("retry-after"))
    wire = _error_object(headers.get("content-type"), body)
    if wire is None:
        error: SIEError = (
            UnavailableError(f"The server is not available (HTTP {status}: {_excerpt(body)}).", request_id=request_id)
            if status in MAY_PASS
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


def from_wire(error: dict[str, Any], *, status: int = 500, request_id: str | None = None) -> SIEError:
    """The error a server's ``error`` object stands for; an unknown code falls back to the status's family."""
    code = str(error.get("code", ""))
    cls = BY_CODE.get(code)
    if cls is not None:
        return _rebuild(cls, {"message": f"HTTP {status}", **error}, request_id)
    family = _BY_STATUS.get(status, InvalidInputError if 400 <= status < 500 else SIEError)
    server_code = {"server_code": code} if code else {}
    return _rebuild(family, {"message": f"HTTP {status}", **error, **server_code}, request_id)


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


def _text(value: object) -> str | None:
    """Of a server that is not ours anything may come where a text belongs."""
    return None if value is None else str(value)


def _seconds(value: object) -> float | None:
    return value if isinstance(value, int | float) and 0 <= value <= _LONGEST_S else None


def _rebuild(cls: type[SIEError], wire: dict[str, Any], request_id: str | None) -> SIEError:
    fields = {name: value for name, value in wire.items() if name != "code"}
    error = cls(
        str(fields.pop("message")),
        field=_text(fields.pop("param", None)),
        limit=fields.pop("limit", None),
        hint=_text(fields.pop("hint", None)),
        retry_after=_seconds(fields.pop("retry_after", None)),
        request_id=request_id,
    )
    # Not as keywords: a server may send any name, ``field`` and ``request_id`` among them.
    error.details = fields
    return error


def unexpected(body: bytes, expected: str, reason: Exception) -> UnexpectedReplyError:
    """The error for a reply that should have been ``expected`` and is not; it shows the body's first bytes."""
    return UnexpectedReplyError(
        f"The reply is not {expected} ({str(reason).rstrip('.')}); it begins {_excerpt(body)}.",
        hint="Check that base_url is the server and not a proxy.",
    )


def _excerpt(body: bytes) -> str:
    return repr(bytes(body[:120])) if body else "empty"
