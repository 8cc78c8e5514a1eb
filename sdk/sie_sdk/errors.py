"""The one error tree of the project, shared by both ends of the wire.

    SIEError                      500 INTERNAL_ERROR
    ├── InvalidInputError         400 INVALID_INPUT          names the field and the limit
    │   ├── InputTooLongError     400 INPUT_TOO_LONG
    │   ├── PayloadTooLargeError  413 PAYLOAD_TOO_LARGE
    │   ├── UnsupportedMediaTypeError 415 UNSUPPORTED_MEDIA_TYPE
    │   ├── IdempotencyMismatchError  422 IDEMPOTENCY_MISMATCH
    │   ├── MethodNotAllowedError 405 METHOD_NOT_ALLOWED
    │   ├── UnknownProfileError   400 PROFILE_NOT_FOUND      lists the model's profiles
    │   ├── BundleConflictError   409 BUNDLE_ROUTING_CONFLICT    lists the bundles that serve the model
    │   ├── InvalidSpecError      422 INVALID_SPEC           a model spec that was sent: lists all its faults
    │   ├── ContentConflictError  409 CONTENT_CONFLICT       an append that would change what is there
    │   ├── OwnedElsewhereError   409 OWNED_ELSEWHERE        the model is another owner's
    │   ├── PreconditionFailedError 412 PRECONDITION_FAILED  changed since it was read; carries the etag of now
    │   ├── PoolCapacityError     409 POOL_CAPACITY_UNAVAILABLE  the pool has no workers for this model
    │   └── PoolForbiddenError    403 POOL_OPERATION_FORBIDDEN   too many pools, or not one to be changed so
    │       └── DefaultPoolError  403 DEFAULT_POOL_DELETE_FORBIDDEN
    ├── UnauthorizedError         401 UNAUTHORIZED           no token, or not a known one
    ├── ForbiddenError            403 FORBIDDEN              the token does not allow this, or nobody may
    ├── NotFoundError             404 NOT_FOUND
    │   ├── ModelNotFoundError    404 MODEL_NOT_FOUND        carries the nearest names
    │   ├── BundleNotFoundError   404 BUNDLE_NOT_FOUND       lists the bundles there are
    │   ├── JobNotFoundError      404 JOB_NOT_FOUND
    │   └── PoolNotFoundError     404 POOL_NOT_FOUND         never made, deleted, or its lease has ended
    ├── UnavailableError          503 UNAVAILABLE            try again after `retry_after` seconds
    │   ├── ProvisioningError     503 PROVISIONING           no worker yet; `job` is set when the work is queued
    │   ├── ModelLoadingError     503 MODEL_LOADING
    │   ├── OutOfMemoryError      503 RESOURCE_EXHAUSTED     the device has no room for it now
    │   ├── QueueFullError        503 QUEUE_FULL
    │   ├── RateLimitedError      429 RATE_LIMITED           this tenant has too much in flight; others are served
    │   ├── PoolNotReadyError     503 POOL_NOT_READY         its queues do not exist yet
    │   ├── QueueUnavailableError 503 QUEUE_UNAVAILABLE
    │   └── ConfigWriterBusyError 503 CONFIG_WRITER_BUSY     another process writes the catalogue, or the broker is away
    ├── ProvisioningFailedError   503 PROVISIONING_FAILED    no worker came for too long; says why, as far as is known
    ├── ModelLoadFailedError      502 MODEL_LOAD_FAILED
    │   └── WeightsUnavailableError 502 WEIGHTS_UNAVAILABLE  lists each source tried and why it failed
    ├── DeadlineExceededError     504 DEADLINE_EXCEEDED
    ├── PayloadLostError          500 PAYLOAD_LOST           a large request or answer is no longer stored, or damaged
    ├── InferenceError            500 INFERENCE_ERROR        the model's output was not finite
    ├── WorkExhaustedError        500 WORK_EXHAUSTED         no worker finished it; kept as a dead letter
    ├── PoolsUnsupportedError     501 POOLS_UNSUPPORTED      one process has nothing to assign
    ├── ModelPlannedError         501 MODEL_PLANNED          in the catalogue, and nothing computes it yet
    ├── ModelUnplacedError        501 MODEL_UNPLACED         no machine that is deployed here runs or holds it
    ├── ConfigurationError        500 CONFIGURATION          a setting or a model spec is wrong; names it
    ├── StartFailedError          500 START_FAILED           sie up: a process did not start; its own words follow
    └── of the client: ConnectionFailedError and UnexpectedReplyError and CancelledByCallerError (499 to a server)

Nothing outside this tree reaches a caller: an unknown exception is logged with its trace and answered as
``INTERNAL_ERROR`` with a fixed line. This module owns the classes and what they put on the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SIEError(Exception):
    """Base of every error a caller can see.

    Args:
        message: one sentence that says what is wrong.
        field: the request field at fault, as a path (``items[3].text``).
        limit: the limit that was passed, in the field's own unit.
        hint: what the caller should do next.
        retry_after: seconds after which trying again makes sense.
        request_id: the ``X-Request-ID`` of the failed request.
        details: anything else worth a machine's attention; JSON-serialisable.
    """

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: float | str | None = None,
        hint: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        **details: Any,
    ) -> None:
        # The one positional argument and the attributes are what an exception pickles and copies by itself.
        super().__init__(message)
        self.message = message
        self.field, self.limit, self.hint = field, limit, hint
        self.retry_after, self.request_id, self.details = retry_after, request_id, details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def to_wire(self) -> dict[str, Any]:
        """The ``error`` object of the wire protocol (section 3.1): ``{code, message, param?, limit?, hint?, ...}``."""
        named = {"param": self.field, "limit": self.limit, "hint": self.hint, "retry_after": self.retry_after}
        told = {name: value for name, value in named.items() if value is not None}
        return {"code": self.code, "message": self.message} | told | self.details


class InvalidInputError(SIEError):
    """The request can never succeed as it is; ``field`` names what to change."""

    code = "INVALID_INPUT"
    status = 400


class InputTooLongError(InvalidInputError):
    """A text is over the byte limit, or over the model's token limit with ``overflow_policy="error"``."""

    code = "INPUT_TOO_LONG"


class PayloadTooLargeError(InvalidInputError):
    """The request body is over the limit, and was refused before it was read whole; or the answer is."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413


class UnsupportedMediaTypeError(InvalidInputError):
    """The body is neither ``application/msgpack`` nor ``application/json``."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class IdempotencyMismatchError(InvalidInputError):
    """An ``Idempotency-Key`` was used again with a different request."""

    code = "IDEMPOTENCY_MISMATCH"
    status = 422


class MethodNotAllowedError(InvalidInputError):
    """The route exists, the HTTP method does not."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class UnknownProfileError(InvalidInputError):
    """The model has no profile of that name; ``details["profiles"]`` lists those it has."""

    code = "PROFILE_NOT_FOUND"


class BundleConflictError(InvalidInputError):
    """The bundle that was named does not serve the model; ``details["compatible_bundles"]`` lists those that do."""

    code = "BUNDLE_ROUTING_CONFLICT"
    status = 409


class InvalidSpecError(InvalidInputError):
    """A model spec is wrong; ``details["faults"]`` lists everything that is, each with its path."""

    code = "INVALID_SPEC"
    status = 422


class ContentConflictError(InvalidInputError):
    """Appending would change what is there; ``details["conflicts"]`` lists the paths."""

    code = "CONTENT_CONFLICT"
    status = 409


class OwnedElsewhereError(InvalidInputError):
    """Another owner applies the model; ``details["owned"]`` lists each with its owner."""

    code = "OWNED_ELSEWHERE"
    status = 409


class PreconditionFailedError(InvalidInputError):
    """It is not as ``If-Match`` or ``If-None-Match`` wants it; ``details["etag"]`` is what it is now."""

    code = "PRECONDITION_FAILED"
    status = 412


class PoolCapacityError(InvalidInputError):
    """The pool can have no worker that serves this model: its bundle or machine profile is another."""

    code = "POOL_CAPACITY_UNAVAILABLE"
    status = 409


class PoolForbiddenError(InvalidInputError):
    """There are as many pools as there may be, or this one may not be changed so."""

    code = "POOL_OPERATION_FORBIDDEN"
    status = 403


class DefaultPoolError(PoolForbiddenError):
    """The default pool stays."""

    code = "DEFAULT_POOL_DELETE_FORBIDDEN"


class UnauthorizedError(SIEError):
    """The request carries no token, or not one that is known."""

    code = "UNAUTHORIZED"
    status = 401


class ForbiddenError(SIEError):
    """The token is known and does not allow this, or the server allows it to nobody."""

    code = "FORBIDDEN"
    status = 403


class NotFoundError(SIEError):
    """No such route or thing."""

    code = "NOT_FOUND"
    status = 404


class ModelNotFoundError(NotFoundError):
    """No model of that name; ``details["nearest"]`` lists close names."""

    code = "MODEL_NOT_FOUND"


class BundleNotFoundError(NotFoundError):
    """No bundle of that name; ``details["bundles"]`` lists those there are."""

    code = "BUNDLE_NOT_FOUND"


class JobNotFoundError(NotFoundError):
    """No such job, or its lifetime has passed."""

    code = "JOB_NOT_FOUND"


class PoolNotFoundError(NotFoundError):
    """No such pool: never made, deleted, or its lease has ended."""

    code = "POOL_NOT_FOUND"


class UnavailableError(SIEError):
    """Not now; the same request may succeed after ``retry_after`` seconds."""

    code = "UNAVAILABLE"
    status = 503


class ProvisioningError(UnavailableError):
    """No worker is up yet. ``details["job"]`` names the queued job when the work was accepted."""

    code = "PROVISIONING"


class ModelLoadingError(UnavailableError):
    """A worker is up and is loading the model."""

    code = "MODEL_LOADING"


class OutOfMemoryError(UnavailableError):
    """The device has not the memory for this request now, even alone and with all else dropped."""

    code = "RESOURCE_EXHAUSTED"  # the published client tries this one again, and not much else


class QueueFullError(UnavailableError):
    """The work queue refused the request: the overload signal."""

    code = "QUEUE_FULL"


class RateLimitedError(UnavailableError):
    """The tenant has as many requests in flight as it may have; nothing was accepted."""

    code = "RATE_LIMITED"
    status = 429


class PoolNotReadyError(UnavailableError):
    """The pool was made a moment ago and has no queues yet; nothing was accepted."""

    code = "POOL_NOT_READY"


class QueueUnavailableError(UnavailableError):
    """The broker does not answer; nothing was accepted."""

    code = "QUEUE_UNAVAILABLE"


class ConfigWriterBusyError(UnavailableError):
    """Another process writes the catalogue now, or the broker is away; nothing was changed."""

    code = "CONFIG_WRITER_BUSY"


class ProvisioningFailedError(SIEError):
    """No worker has come for so long that waiting is over; the message says why. ``details["job"]`` stays queued."""

    code = "PROVISIONING_FAILED"
    status = 503


class ModelLoadFailedError(SIEError):
    """The model could not be loaded."""

    code = "MODEL_LOAD_FAILED"
    status = 502


class WeightsUnavailableError(ModelLoadFailedError):
    """No weight source could be read; ``details["sources"]`` lists each with its reason."""

    code = "WEIGHTS_UNAVAILABLE"


class DeadlineExceededError(SIEError):
    """The answer did not come before the deadline."""

    code = "DEADLINE_EXCEEDED"
    status = 504


class PayloadLostError(SIEError):
    """The data of a large request or answer is no longer stored, or came back damaged; send the request again."""

    code = "PAYLOAD_LOST"


class InferenceError(SIEError):
    """The model's output for this input was not finite; other inputs are unaffected."""

    code = "INFERENCE_ERROR"


class WorkExhaustedError(SIEError):
    """Worker after worker was given the request and none finished it; it is kept as a dead letter, not tried again."""

    code = "WORK_EXHAUSTED"


class PoolsUnsupportedError(SIEError):
    """This server is one process and has no workers to assign."""

    code = "POOLS_UNSUPPORTED"
    status = 501


class ModelPlannedError(SIEError):
    """The model is in the catalogue and nothing computes it yet; ``details["blocked_by"]`` says what is missing."""

    code = "MODEL_PLANNED"
    status = 501


class ModelUnplacedError(SIEError):
    """The model could be served, but nothing that is deployed here runs or holds it; the hint says what would."""

    code = "MODEL_UNPLACED"
    status = 501


class ConfigurationError(SIEError):
    """A setting or a model spec is wrong; the process does not start with it."""

    code = "CONFIGURATION"


class StartFailedError(SIEError):
    """`sie up`: a process did not start; the message is the account of it."""

    code = "START_FAILED"


class ConnectionFailedError(SIEError):
    """Client side: the server could not be reached or hung up."""

    code = "CONNECTION_FAILED"
    status = 0


class UnexpectedReplyError(SIEError):
    """Client side: the answer does not follow the protocol (a proxy's page, for instance)."""

    code = "UNEXPECTED_REPLY"
    status = 0


class CancelledByCallerError(SIEError):
    """The caller's ``cancel`` was set, ``details["job"]`` stays queued; or it hung up, which only a server counts."""

    code = "CANCELLED"
    status = 499
