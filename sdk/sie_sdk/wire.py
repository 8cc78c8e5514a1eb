"""The bodies of the HTTP protocol as pure functions over bytes, for both ends: the clients and the ingress.

Owns formats (msgpack, JSON), their strict checks and the wording of what is wrong with a body. Not here: the records
themselves (``types``), arrays (``arrays``), URLs and retries (``calls``), sockets (``transport``).
Decoders and encoders are built once; a request of 4096 texts is checked without Python code per field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from sie_sdk import arrays
from sie_sdk.errors import (
    InputTooLongError,
    InvalidInputError,
    SIEError,
    UnavailableError,
    UnexpectedReplyError,
    UnsupportedMediaTypeError,
    from_wire,
)
from sie_sdk.types import EncodeRequest, EncodeResult, JobStatus, ModelInfo, OutputDtype, OutputType, Timing, Usage

MediaType: TypeAlias = Literal["application/msgpack", "application/json"]
MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True):
    """How much one request may hold: ``max_items`` items, each text of at most ``max_text_bytes`` bytes of UTF-8."""

    max_items: int = 4096
    max_text_bytes: int = 2 * 1024 * 1024


DEFAULT_LIMITS = Limits()


class _Dense(msgspec.Struct):
    values: dict[bytes, Any]


class _ReplyItem(msgspec.Struct):
    id: str | None = None
    dense: _Dense | None = None


class _EncodeReply(msgspec.Struct):
    items: list[_ReplyItem]
    timing: Timing | None = None


class _Accepted(msgspec.Struct):
    job: JobStatus


class _ModelList(msgspec.Struct):
    models: list[ModelInfo]


_to_msgpack = msgspec.msgpack.Encoder()
_to_json = msgspec.json.Encoder(enc_hook=str)
_request_from_msgpack = msgspec.msgpack.Decoder(EncodeRequest)
_request_from_json = msgspec.json.Decoder(EncodeRequest)
_encode_reply = msgspec.msgpack.Decoder(_EncodeReply)
_any_from_msgpack = msgspec.msgpack.Decoder()
_any_from_json = msgspec.json.Decoder()

_ALLOWED = {"output_types": get_args(OutputType), "output_dtype": get_args(OutputDtype)}
_EXAMPLE = '{"items": [{"text": "hello"}]}'


# -- media types -------------------------------------------------------------------------------------------------------


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


# -- encode: the request -----------------------------------------------------------------------------------------------


def request_body(request: EncodeRequest) -> bytes:
    """The msgpack body of ``POST /v1/encode/{model}``; fields at their default are left out."""
    return _to_msgpack.encode(request)


def parse_encode(body: bytes, content_type: str | None, *, limits: Limits = DEFAULT_LIMITS) -> EncodeRequest:
    """Read and check the body of ``POST /v1/encode/{model}``. Unknown fields are ignored; ``""`` is a text.

    Raises:
        UnsupportedMediaTypeError: the body is neither msgpack nor JSON by its ``content_type``.
        InvalidInputError: it does not parse, or a field has a wrong type or value; ``field`` is its path.
        InputTooLongError: a text is over ``limits.max_text_bytes``; ``limit`` is that number of bytes.
    """
    media = body_type(content_type)
    request = _parse(_request_from_json if media == JSON else _request_from_msgpack, body, media)
    count = len(request.items)
    if count == 0:
        raise InvalidInputError("items is empty.", field="items", hint="Send at least one item.")
    if count > limits.max_items:
        raise InvalidInputError(
            f"{count} items are more than one request may hold.",
            field="items",
            limit=limits.max_items,
            hint=f"Send at most {limits.max_items} items per request.",
        )
    texts = [item.text for item in request.items]
    if None in texts:
        field = f"items[{texts.index(None)}]"
        raise InvalidInputError(f"{field} has no content.", field=field, hint=f'Give every item a "text": {_EXAMPLE}.')
    # No text is longer than the body it came in, so most requests need no look at each text.
    if len(body) > limits.max_text_bytes:
        _check_lengths(texts, limits.max_text_bytes)
    return request


def _check_lengths(texts: Sequence[str | None], limit: int) -> None:
    for index, text in enumerate(texts):
        # A character is at most 4 bytes of UTF-8; only texts near the limit are worth encoding.
        if text is not None and len(text) * 4 > limit and (size := len(text.encode())) > limit:
            raise InputTooLongError(
                f"items[{index}].text has {size} bytes.",
                field=f"items[{index}].text",
                limit=limit,
                hint=f"Split it into texts of at most {limit} bytes.",
            )


def _parse(decoder: msgspec.msgpack.Decoder[T] | msgspec.json.Decoder[T], body: bytes, media: MediaType) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"The body is not valid {media}: {str(error).rstrip('.')}.",
            field="body",
            hint=f"Send {_EXAMPLE} in that format.",
        ) from None
    except RecursionError:
        raise InvalidInputError(
            "The body is nested too deeply.", field="body", hint="Flatten metadata and options."
        ) from None


def _wrong_field(complaint: str) -> InvalidInputError:
    """msgspec's ``Expected `str`, got `int` - at `$.items[3].text``` as an error that names the field."""
    what, _, path = complaint.partition(" - at `$")
    field = path.rstrip("`").lstrip(".") or None
    allowed = _ALLOWED.get(field.rpartition(".")[2].partition("[")[0]) if field else None
    if allowed and what.startswith("Invalid enum value"):
        hint = f"Allowed: {', '.join(allowed)}."
    else:
        hint = f"The body looks like {_EXAMPLE}."
    what = what.replace("`", "").replace("Object missing", "it lacks the").replace("object", "map")
    return InvalidInputError(f"{field or 'The body'} is wrong: {what[0].lower()}{what[1:]}.", field=field, hint=hint)


# -- encode: the result ------------------------------------------------------------------------------------------------


def encode_result(
    model: str,
    ids: Sequence[str | None],
    vectors: npt.NDArray[Any],
    dtype: OutputDtype,
    timing: Timing,
    usage: Usage,
) -> bytes:
    """The msgpack reply body of encode (wire protocol 2.3).

    Args:
        model: the model's name as it was asked for.
        ids: the items' own ids in request order; an item without one gets none back.
        vectors: shape ``[len(ids), dims]``, cast to ``dtype`` if it has another.
        dtype: the arrays' type on the wire, and the label beside them.
        timing: the request's stages, in milliseconds.
        usage: tokens computed.
    """
    rows = arrays.pack_rows(vectors.astype(np.dtype(dtype), copy=False))
    label = {"dims": int(vectors.shape[1]), "dtype": dtype}
    items: list[dict[str, Any]] = [{"dense": {**label, "values": row}} for row in rows]
    for item, own in zip(items, ids, strict=True):
        if own is not None:
            item["id"] = own
    return _to_msgpack.encode({"model": model, "items": items, "timing": timing, "usage": usage})


def read_encode_result(body: bytes) -> list[EncodeResult]:
    """The results in an encode reply, in request order; arrays are read-only views of the decoded bytes.

    msgpack hands each array's bytes out as an object of its own: measured faster than lending them from ``body``
    (9 against 12.5 ms for 4096 x 384), and one kept result does not keep the whole reply alive.

    Raises:
        UnexpectedReplyError: the body is not an encode reply.
    """
    try:
        reply = _encode_reply.decode(body)
        return [
            EncodeResult(
                dense=None if item.dense is None else arrays.unpack(item.dense.values),
                id=item.id,
                timing=reply.timing,
            )
            for item in reply.items
        ]
    except (ValueError, RecursionError, InvalidInputError) as error:
        raise _unexpected(body, "an encode result", error) from None


# -- jobs and models ---------------------------------------------------------------------------------------------------


def job_body(job: JobStatus) -> bytes:
    """The JSON body of a 202: ``{"job": {id, state, retry_after_s, message}}``."""
    return _to_json.encode({"job": job})


def read_job(body: bytes, content_type: str | None) -> JobStatus:
    """The job a 202 stands for, msgpack or JSON by its type.

    Raises:
        UnexpectedReplyError: the body names no job.
    """
    return _read(body, content_type, _Accepted).job


def read_models(body: bytes, content_type: str | None) -> list[ModelInfo]:
    """The rows of a ``GET /v1/models`` reply; errors as :func:`read_job`."""
    return _read(body, content_type, _ModelList).models


def read_model(body: bytes, content_type: str | None) -> ModelInfo:
    """The one row of a ``GET /v1/models/{name}`` reply; errors as :func:`read_job`."""
    return _read(body, content_type, ModelInfo)


def _read(body: bytes, content_type: str | None, kind: type[T]) -> T:
    try:
        if "msgpack" in _essence(content_type):
            return msgspec.msgpack.decode(body, type=kind)
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise _unexpected(body, "of this protocol", error) from None


# -- JSON for people ---------------------------------------------------------------------------------------------------


def to_json(body: bytes) -> bytes:
    """A msgpack reply body as JSON; arrays become plain (nested) lists."""
    return _to_json.encode(_plain(_any_from_msgpack.decode(body)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if b"nd" in value:
            return arrays.unpack(value).tolist()
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


# -- errors ------------------------------------------------------------------------------------------------------------


def error_body(error: SIEError) -> bytes:
    """The JSON body of an error reply: ``{"error": {code, message, ...}}``. Details unknown to JSON become text."""
    return _to_json.encode({"error": error.to_wire()})


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
    decoder = _any_from_msgpack if "msgpack" in _essence(content_type) else _any_from_json
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


def _unexpected(body: bytes, expected: str, reason: Exception) -> UnexpectedReplyError:
    return UnexpectedReplyError(
        f"The reply is not {expected} ({str(reason).rstrip('.')}); it begins {_excerpt(body)}.",
        hint="Check that base_url is the server and not a proxy.",
    )


def _excerpt(body: bytes) -> str:
    return repr(bytes(body[:120])) if body else "empty"


def _essence(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()
