"""Published clients (sie-sdk and its kin): how one is known, and what it is told where it knows other words.

Owns the translation of errors into those its retries and exception classes go by (wire protocol, 3.2 and 3.3); all
others it takes as they are. Pure.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from sie_sdk.errors import (
    DeadlineExceededError,
    ModelLoadFailedError,
    PoolNotReadyError,
    ProvisioningError,
    QueueFullError,
    SIEError,
    UnavailableError,
)

SDK_VERSION = "x-sie-sdk-version"
"""The header that published clients send, and ours does not: they take a 202 for the answer."""

HELD_S = 140.0
"""How long its request is held at most: it reads for 150 s, and never tries again what it has given up to read."""

_LOAD_FAILURES = {
    "gated": ("GATED", True),
    "not_found": ("NOT_FOUND", True),
    "corrupt": ("CONFIG", True),
    "memory": ("OOM", False),
    "too_large": ("OOM", True),
    "network": ("NETWORK", False),
}
"""Their class of a load failure by our reason, and whether another try soon is in vain."""


def asks(scope: Scope) -> bool:
    """Whether a published client sent this request; known from the middleware on."""
    return bool(scope.get("sie.published"))


def let_go(leaving: bool) -> SIEError:
    """What it is told instead of the job that its request has become: to send the request again.

    ``leaving``: the server stops; another may have the answer sooner than this one was going to.
    """
    if leaving:
        return ProvisioningError("This server is leaving.", retry_after=0.5)
    return DeadlineExceededError("The answer took longer than a request is held.", retry_after=1.0)


def told(error: SIEError) -> SIEError:
    """The same error in a published client's words.

    What it would give up on although it passes becomes a code that it tries again; a load failure gets the fields that
    its exception carries.
    """
    match error:
        case PoolNotReadyError():
            return _as(ProvisioningError, error)
        case ModelLoadFailedError():
            kind, permanent = _LOAD_FAILURES.get(str(error.details.get("reason")), ("UNKNOWN", False))
            return _as(ModelLoadFailedError, error, error_class=kind, permanent=permanent, attempts=1)
        case _ if type(error) is UnavailableError:
            return _as(QueueFullError, error)
    return error


def _as(kind: type[SIEError], error: SIEError, **details: Any) -> SIEError:
    return kind(
        error.message,
        field=error.field,
        limit=error.limit,
        hint=error.hint,
        retry_after=error.retry_after,
        request_id=error.request_id,
        **(details | error.details),
    )
