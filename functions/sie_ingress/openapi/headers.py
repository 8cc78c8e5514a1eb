"""Headers that more than one route reads or sends, each described once, and the errors that routes have in common."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from sie_ingress.openapi.operation import Header, Parameter
from sie_sdk import errors
from sie_sdk.errors import SIEError
from sie_sdk.types import Priority

# -- of requests -------------------------------------------------------------------------------------------------------

REQUEST_ID: Final = Parameter(
    "X-Request-ID",
    "The request's id, in every log line about it; comes back. One of another form than 1 to 128 letters, digits and "
    "`_.:/+=-` is replaced by a new one.",
)
TRACE: Final = Parameter(
    "traceparent", "A trace (W3C Trace Context) that goes on with the work; an invalid one is ignored."
)
STATE: Final = Parameter("tracestate", "Goes with the trace; nothing without one.")
SDK: Final = Parameter(
    "X-SIE-SDK-Version",
    "Sent by published clients, which take every 2xx for success: while no worker is up they get `503 PROVISIONING` "
    "instead of a 202, and nothing is queued.",
)
PREFER: Final = Parameter(
    "Prefer",
    "`wait=N`: hold up to N seconds before answering 202. `wait=0` and `respond-async`: a job in any case. Other "
    "preferences are ignored.",
    example="wait=30",
)
IDEMPOTENCY: Final = Parameter("Idempotency-Key", "Repeats with the same key are one job, computed once.")
TENANT: Final = Parameter(
    "X-SIE-Tenant",
    "On whose behalf: counted against the server's limit for one tenant; an Idempotency-Key is each tenant's own.",
    Annotated[str, Meta(pattern=r"^[!-~]{0,128}$")],
)
PRIORITY: Final = Parameter(
    "X-SIE-Priority",
    "Interactive work goes first. Default: bulk for a request so large that it is split.",
    Literal[Priority, ""],
)
EXPIRES: Final = Parameter(
    "X-SIE-Expires-In",
    "Seconds after which nobody wants the answer; work that was not begun by then is dropped.",
    Annotated[float, Meta(gt=0)],
    example=30,
)
POOL: Final = Parameter("X-SIE-Pool", "The pool that is to compute it; without it the model's own.")
PROFILE: Final = Parameter(
    "X-SIE-MACHINE-PROFILE",
    "The machine that shall compute it, `l4`; `pool/l4` names a pool too. Where the model is not placed on it, its own "
    "does.",
)

EVERYWHERE: Final = (REQUEST_ID,)
TERMS: Final = (PREFER, IDEMPOTENCY, PRIORITY, TENANT, EXPIRES, POOL, PROFILE, SDK, TRACE, STATE)

# -- of replies --------------------------------------------------------------------------------------------------------

_WHOLE = "whole ones but for clients of the platform, which read fractions."
IDENTITY: Final = (
    Header("X-Request-ID", "The caller's, or a new one.", always=True),
    Header("X-SIE-Request-ID", "The same.", always=True),
    Header("X-SIE-Server-Version", "The version of the published protocol that is spoken.", always=True),
    Header("X-SIE-Version", "This server's own version.", always=True),
    Header("traceparent", "The request's trace, if it came with a valid one."),
    Header("X-Trace-ID", "Its id."),
)
COMPUTED: Final = (
    Header("X-SIE-Worker", "Who computed it.", always=True),
    Header("X-SIE-Model-Revision", "The model's revision in the catalogue."),
    Header(
        "X-Queue-Time", "Milliseconds until a worker has taken the request and its model is loaded.", float, always=True
    ),
    Header("X-Tokenization-Time", "Milliseconds of reading the body and tokenization.", float),
    Header("X-Batch-Wait-Time", "Milliseconds of waiting for the device.", float),
    Header("X-Inference-Time", "Milliseconds of the forward pass.", float),
    Header("X-Postprocessing-Time", "Milliseconds from the forward pass to the finished reply.", float),
    Header("X-Total-Time", "Milliseconds in all.", float, always=True),
    Header("X-SIE-Units-Input-Tokens", "Tokens computed.", int, always=True),
    Header("X-SIE-Units-Pairs", "Pairs scored.", int),
)
ASK_AGAIN: Final = (
    Header("Location", "Where the answer will be.", always=True),
    Header("Retry-After", f"Seconds until it is expected there; {_WHOLE}", float, always=True),
    Header("Preference-Applied", "`wait=N` or `respond-async` when it was honoured."),
)
CODE: Final = Header("X-SIE-Error-Code", "The code of the error body.", always=True)
RETRY: Final = Header("Retry-After", f"Seconds after which trying again makes sense; {_WHOLE}", float)

# -- errors ------------------------------------------------------------------------------------------------------------

BAD_BODY: Final[tuple[type[SIEError], ...]] = (
    errors.InvalidInputError,
    errors.InputTooLongError,
    errors.PayloadTooLargeError,
    errors.UnsupportedMediaTypeError,
)
NOT_NAMED: Final[tuple[type[SIEError], ...]] = (
    errors.ModelNotFoundError,
    errors.BundleNotFoundError,
    errors.BundleConflictError,
    errors.UnknownProfileError,
)
NOT_SERVED: Final[tuple[type[SIEError], ...]] = (errors.ModelPlannedError, errors.ModelUnplacedError)
NOT_PLACED: Final[tuple[type[SIEError], ...]] = (
    *NOT_NAMED,
    *NOT_SERVED,
    errors.PoolNotFoundError,
    errors.PoolCapacityError,
    errors.PoolNotReadyError,
    errors.IdempotencyMismatchError,
    errors.RateLimitedError,
    errors.QueueFullError,
    errors.QueueUnavailableError,
    errors.UnavailableError,
)
NOT_COMPUTED: Final[tuple[type[SIEError], ...]] = (
    errors.ProvisioningError,
    errors.ProvisioningFailedError,
    errors.ModelLoadingError,
    errors.OutOfMemoryError,
    errors.ModelLoadFailedError,
    errors.WeightsUnavailableError,
    errors.DeadlineExceededError,
    errors.PayloadLostError,
    errors.InferenceError,
    errors.WorkExhaustedError,
)
"""What a worker answers, or the platform in its place; a job's answer may be one of them too."""
