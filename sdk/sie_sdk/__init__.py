"""The SDK: clients, wire types, the error tree and the `sie` command line.

>>> from sie_sdk import SIEClient
>>> SIEClient("http://127.0.0.1:8080").encode("all-MiniLM-L6-v2", "hello").dense.shape
(384,)

Everything public is here; ``arrays``, ``wire`` and ``settings`` are for the servers of this project.
"""

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.errors import (
    CancelledByCallerError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    IdempotencyMismatchError,
    InferenceError,
    InputTooLongError,
    InvalidInputError,
    JobNotFoundError,
    MethodNotAllowedError,
    ModelLoadFailedError,
    ModelLoadingError,
    ModelNotFoundError,
    NotFoundError,
    PayloadTooLargeError,
    ProvisioningError,
    QueueFullError,
    QueueUnavailableError,
    SIEError,
    StartFailedError,
    UnavailableError,
    UnexpectedReplyError,
    UnsupportedMediaTypeError,
    WeightsUnavailableError,
)
from sie_sdk.types import EncodeResult, Item, ModelInfo, OutputDtype, OutputType, Progress, Timing
from sie_sdk.version import __version__

__all__ = [
    "CancelledByCallerError",
    "ConfigurationError",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "EncodeResult",
    "IdempotencyMismatchError",
    "InferenceError",
    "InputTooLongError",
    "InvalidInputError",
    "Item",
    "JobNotFoundError",
    "MethodNotAllowedError",
    "ModelInfo",
    "ModelLoadFailedError",
    "ModelLoadingError",
    "ModelNotFoundError",
    "NotFoundError",
    "OutputDtype",
    "OutputType",
    "PayloadTooLargeError",
    "Progress",
    "ProvisioningError",
    "QueueFullError",
    "QueueUnavailableError",
    "SIEAsyncClient",
    "SIEClient",
    "SIEError",
    "StartFailedError",
    "Timing",
    "UnavailableError",
    "UnexpectedReplyError",
    "UnsupportedMediaTypeError",
    "WeightsUnavailableError",
    "__version__",
]
