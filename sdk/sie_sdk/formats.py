"""The formats of bodies, and the bodies of requests as a client writes them. Pure.

Owns the names of the formats, the choice of one and what has no form in them. Not here: how a server reads and checks
requests (``wire``), bodies of replies (``replies``, ``results``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from sie_sdk.errors import InvalidInputError, UnsupportedMediaTypeError
from sie_sdk.types import EncodeRequest, ExtractRequest, ScoreRequest

MediaType: TypeAlias = Literal["application/msgpack", "application/json"]
MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

Request: TypeAlias = EncodeRequest | ScoreRequest | ExtractRequest


@lru_cache(maxsize=64)
def body_type(content_type: str | None) -> MediaType:
    """The format of a body, from its ``Content-Type``. None given means msgpack; nothing is guessed from the bytes.

    Raises:
        UnsupportedMediaTypeError: any other type, such as the form type that ``curl -d`` sends by itself.
    """
    match _essence(content_type):
        case "" | "application/msgpack" | "application/x-msgpack" | "application/vnd.msgpack":
            return MSGPACK
        case "application/json":
            return JSON
        case other:
            raise UnsupportedMediaTypeError(
                f"Bodies of type {other} are not read.",
                field="Content-Type",
                hint=f"Send {MSGPACK}, or {JSON} (curl: -H 'Content-Type: {JSON}').",
            )


@lru_cache(maxsize=64)
def media_type(accept: str | None, content_type: str | None = None) -> MediaType:
    """The format to reply in: the first of msgpack and JSON that ``Accept`` names, else the request's own format.

    ``*/*`` and an absent header name neither. Weights (``q=``) are not read: a client that wants one names one.
    """
    for wanted in (accept or "").split(","):
        if "msgpack" in (essence := _essence(wanted)):
            return MSGPACK
        if essence == JSON:
            return JSON
    return JSON if _essence(content_type) == JSON else MSGPACK


def _essence(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def request_body(request: Request) -> bytes:
    """The msgpack body of a request; fields at their default are left out.

    Raises:
        InvalidInputError: metadata or options hold something that has no form on the wire.
    """
    try:
        return _to_msgpack.encode(request)
    except (OverflowError, RecursionError, UnicodeEncodeError, InvalidInputError) as error:
        field = _at_fault(request)
        if isinstance(error, InvalidInputError):
            error.field = field
            raise
        raise InvalidInputError(
            f"{'The request' if field == 'body' else field} has no form on the wire: {error}.",
            field=field,
            hint="Whole numbers have 64 bits, texts no half surrogate pairs, and metadata is not nested too deeply.",
        ) from None


def json_body(value: object) -> bytes:
    """The JSON body of a request about something else than inference.

    Raises:
        InvalidInputError: a text in it has no form on the wire.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"The request has no form on the wire: {error}.", field="body", hint="Texts have no half surrogate pairs."
        ) from None


def _at_fault(request: Request) -> str:
    """The item that has no form by itself, or else the body as a whole."""
    query = {"query": request.query} if isinstance(request, ScoreRequest) else {}
    for field, item in (query | {f"items[{index}]": item for index, item in enumerate(request.items)}).items():
        try:
            _to_msgpack.encode(item)
        except (OverflowError, RecursionError, UnicodeEncodeError, InvalidInputError):
            return field
    return "body"


def _written(value: object) -> object:
    """What msgpack does not know of itself: arrays as their maps, numpy's numbers as numbers, texts of any class."""
    if isinstance(value, str):
        return str.__str__(value)  # by no method of its own: it may return one of its class again
    import numpy as np

    from sie_sdk import arrays

    if isinstance(value, np.ndarray):
        return arrays.pack(value)
    if isinstance(value, np.generic):
        return value.item()
    raise InvalidInputError(
        f"A value of type {type(value).__name__} does not travel.", hint="Metadata and options hold what JSON can say."
    )


_to_msgpack = msgspec.msgpack.Encoder(enc_hook=_written)
