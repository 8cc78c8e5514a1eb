"""What a server of text-embeddings-inference tells of itself, and how it says what is wrong. Pure.

Owns ``GET /info``, the form of errors and their statuses, as version 1.9 has them, and which of its routes are not
served here. Requests and answers are ``tei``'s.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects.dialect import Refusal, renamed
from sie_sdk import wire
from sie_sdk.errors import (
    InferenceError,
    InvalidInputError,
    ModelLoadFailedError,
    NotFoundError,
    PayloadTooLargeError,
    QueueFullError,
    RateLimitedError,
    SIEError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from sie_sdk.version import __version__

LABEL: Final = "LABEL_0"
ABSENT: Final = ("tokenize", "decode", "embed_all", "metrics")
"""Its routes that are not served. Without a word of their own each would be taken for the end of a model's name."""
_to_json = msgspec.json.Encoder(enc_hook=str)


def info(spec: ModelSpec, limits: wire.Limits) -> bytes:
    """``GET /info``: what TEI tells of itself, of one model."""
    if spec.tasks.dense is not None or spec.tasks.sparse is not None:
        pooling = spec.tasks.dense.pooling if spec.tasks.dense is not None else "splade"
        kind: dict[str, Any] = {"embedding": {"pooling": pooling}}
    elif spec.tasks.extract is not None:
        labels = spec.tasks.extract.labels
        kind = {
            "classifier": {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
        }
    else:
        kind = {"reranker": {"id2label": {"0": LABEL}, "label2id": {LABEL: 0}}}
    return _to_json.encode(
        {
            "model_id": spec.id,
            "model_sha": spec.revision,
            "model_dtype": spec.precision,
            "served_model_name": spec.id,
            "model_type": kind,
            "max_input_length": spec.max_sequence_length,
            "max_client_batch_size": limits.max_items,
            "auto_truncate": True,
            "version": __version__,
        }
    )


def absent(name: str) -> NotFoundError:
    """The error for one of the routes in `ABSENT`."""
    instead = " GET /metrics has those of the whole server." if name == "metrics" else ""
    return NotFoundError(
        f"The route /{name} of text-embeddings-inference is not served here.",
        hint=f"Those that are stand in docs/dialects.md.{instead}",
    )


def refuse(error: SIEError, items: str) -> Refusal:
    """``{"error", "error_type", ...}``. ``items``: what the route calls the items."""
    status, kind = _status(error)
    error = renamed(error, items, 'truncate true and truncation_direction "right"')
    said = {"error": str(error), "error_type": kind}
    return Refusal(status, _to_json.encode(said | error.to_wire() | said))


def _status(error: SIEError) -> tuple[int, str]:
    """TEI's status and ``error_type``. What it has no word for keeps our status."""
    match error:
        case InvalidInputError() if error.details.get("reason") == "empty":
            return 400, "Empty"
        case InvalidInputError() if error.field in ("route", "params.output_types"):
            return 424, "Backend"  # the model does other things
        case InvalidInputError() if error.field == "model":
            return error.status, "Validation"
        case PayloadTooLargeError() | UnsupportedMediaTypeError():
            return error.status, "Validation"
        case InvalidInputError() if error.status == 400:
            return 422, "Validation"
        case RateLimitedError() | QueueFullError():
            return 429, "Overloaded"
        case UnavailableError():
            return error.status, "Unhealthy"
        case InferenceError() | ModelLoadFailedError():
            return 424, "Backend"
    return error.status or 500, "Validation" if 400 <= error.status < 500 else "Backend"
