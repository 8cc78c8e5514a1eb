"""Limits and the bodies of requests as a server reads them: pure functions over bytes.

Owns the strict checks of requests. Not here: the records themselves (``types``), arrays (``arrays``), how it is told
what does not parse (``complaints``), formats and writing requests (``formats``), bodies of replies (``replies``,
``refusals``), URLs and retries (``calls``).
Decoders and encoders are built once; a request of 4096 texts is checked without Python code per field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from sie_sdk import arrays, bulk, complaints
from sie_sdk.arrays import Array
from sie_sdk.errors import InputTooLongError, InvalidInputError, PayloadTooLargeError
from sie_sdk.formats import JSON as JSON
from sie_sdk.formats import MSGPACK as MSGPACK
from sie_sdk.formats import MediaType as MediaType
from sie_sdk.formats import Request as Request
from sie_sdk.formats import body_type as body_type
from sie_sdk.formats import media_type as media_type
from sie_sdk.formats import request_body as request_body
from sie_sdk.refusals import error_body as error_body
from sie_sdk.types import (
    EncodeRequest,
    ExtractRequest,
    Item,
    Operation,
    OutputDtype,
    OutputType,
    ScoreRequest,
)

T = TypeVar("T", EncodeRequest, ScoreRequest, ExtractRequest)


class Limits(msgspec.Struct, frozen=True):
    """How much one request may hold.

    ``max_items`` items to encode or extract from, ``max_score_items`` to score; each text of at most
    ``max_text_bytes`` bytes of UTF-8; ``max_labels`` labels; an output schema of ``max_schema_nodes`` values that are
    nested ``max_schema_depth`` deep; ``max_other_bytes`` bytes of the body beside texts, ids, media and packed vectors,
    those of vectors in JSON included.
    """

    max_items: int = 4096
    max_text_bytes: int = 2 * 1024 * 1024
    max_score_items: int = 1000
    max_labels: int = 1000
    max_schema_depth: int = 128
    max_schema_nodes: int = 100_000
    max_other_bytes: int = 4 * 1024 * 1024


DEFAULT_LIMITS = Limits()

_ALLOWED = {"output_types": get_args(OutputType), "output_dtype": get_args(OutputDtype)}


# -- requests, read ----------------------------------------------------------------------------------------------------


def read_array(kind: object, value: Any) -> Array:
    """``Item.multivector``: an array map, or in JSON a list of lists. A ValueError gets its path from msgspec."""
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below, as not finite
            array = arrays.unpack(value) if isinstance(value, dict) else np.array(value, np.float32)
    except InvalidInputError as error:
        raise ValueError(error.message) from None
    except OverflowError:
        raise ValueError("Expected finite numbers") from None
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind != "f":
        raise ValueError(f"Expected floats of shape [tokens, dims], got {array.dtype} of shape {list(array.shape)}")
    if not np.isfinite(array).all():
        raise ValueError("Expected finite numbers")
    return array


class _Form(NamedTuple, Generic[T]):
    operation: Operation
    msgpack: msgspec.msgpack.Decoder[T]
    json: msgspec.json.Decoder[T]
    example: str


def _form(operation: Operation, kind: type[T], example: str) -> _Form[T]:
    packed = msgspec.msgpack.Decoder(kind, dec_hook=read_array)
    return _Form(operation, packed, msgspec.json.Decoder(kind, dec_hook=read_array), example)


_encode = _form("encode", EncodeRequest, '{"items": [{"text": "hello"}]}')
_score = _form("score", ScoreRequest, '{"query": {"text": "capital of France"}, "items": [{"text": "Paris"}]}')
_extract = _form(
    "extract", ExtractRequest, '{"items": [{"text": "Ada lives in London"}], "params": {"labels": ["person"]}}'
)


def parse_encode(body: bytes, content_type: str | None, *, limits: Limits = DEFAULT_LIMITS) -> EncodeRequest:
    """Read and check the body of ``POST /v1/encode/{model}``. ``""`` is a text.

    Unknown fields are ignored, but for those that are read in another place (`bulk.STRAYS`).

    Raises:
        UnsupportedMediaTypeError: the body is neither msgpack nor JSON by its ``content_type``.
        InvalidInputError: it does not parse, or a field has a wrong type or value; ``field`` is its path.
        InputTooLongError: a text is over ``limits.max_text_bytes``; ``limit`` is that number of bytes.
    """
    request = _parse(_encode, body, content_type, limits, limits.max_items)
    _check_count(request.items, limits.max_items)
    _check_texts(_encode, request.items, body, content_type, limits)
    return request


def parse_score(body: bytes, content_type: str | None, *, limits: Limits = DEFAULT_LIMITS) -> ScoreRequest:
    """Read and check the body of ``POST /v1/score/{model}``; query and items hold a text or a multivector each.

    Raises as :func:`parse_encode`.
    """
    request = _parse(_score, body, content_type, limits, limits.max_score_items)
    _check_count(request.items, limits.max_score_items)
    everything = [request.query, *request.items]
    _check_texts(_score, everything, body, content_type, limits)
    dims = {item.multivector.shape[1]: index for index, item in enumerate(everything) if item.multivector is not None}
    if len(dims) > 1:
        field = f"{_name(_score, max(dims.values()))}.multivector"
        raise InvalidInputError(
            f"The multivectors have different numbers of dimensions: {', '.join(map(str, sorted(dims)))}.",
            field=field,
            hint="Compute the query and all items with one model.",
        )
    return request


def parse_extract(body: bytes, content_type: str | None, *, limits: Limits = DEFAULT_LIMITS) -> ExtractRequest:
    """Read and check the body of ``POST /v1/extract/{model}``. Raises as :func:`parse_encode`."""
    request = _parse(_extract, body, content_type, limits, limits.max_items)
    _check_count(request.items, limits.max_items)
    _check_texts(_extract, request.items, body, content_type, limits)
    if request.params.labels is not None:
        _check_labels(request.params.labels, limits.max_labels)
    if request.params.output_schema is not None:
        _check_schema(request.params.output_schema, limits)
    return request


PARSERS: Final[dict[Operation, Callable[..., Request]]] = {
    "encode": parse_encode,
    "score": parse_score,
    "extract": parse_extract,
}
"""How a request of each operation is read and checked."""


def _check_count(items: Sequence[Item], limit: int) -> None:
    if not items:
        raise InvalidInputError("items is empty.", field="items", hint="Send at least one item.")
    if len(items) > limit:
        raise _too_many(str(len(items)), limit)


def _too_many(count: str, limit: int) -> InvalidInputError:
    return InvalidInputError(
        f"{count} items are more than one request may hold.",
        field="items",
        limit=limit,
        hint=f"Send at most {limit} items per request.",
    )


def _check_texts(form: _Form[T], items: Sequence[Item], body: bytes, content_type: str | None, limits: Limits) -> None:
    texts = [item.text for item in items]
    if None in texts:
        for index, item in enumerate(items):
            if item.text is None and not (form is _score and item.multivector is not None):
                raise _no_text(form, index, body, content_type)
    _check_unread(form, body, content_type)
    # No text is longer than the body it came in, so most requests need no look at each text.
    if len(body) > (limit := limits.max_text_bytes):
        for index, text in enumerate(texts):
            # A character is at most 4 bytes of UTF-8; only texts near the limit are worth encoding.
            if text is not None and len(text) * 4 > limit and (size := len(text.encode())) > limit:
                field = f"{_name(form, index)}.text"
                raise InputTooLongError(
                    f"{field} has {size} bytes.",
                    field=field,
                    limit=limit,
                    hint=f"Split it into texts of at most {limit} bytes.",
                )


def _check_unread(form: _Form[T], body: bytes, content_type: str | None) -> None:
    """Refuse what nobody reads: media beside a text, whose vector would not be what was asked for, and strays."""
    media = body_type(content_type)
    if bulk.is_bare(body, media, form.operation):
        return
    if (stray := bulk.stray(body, media, form.operation)) is not None:
        belongs = bulk.STRAYS[form.operation][stray]
        raise InvalidInputError(
            f"{stray} stands in the wrong place.",
            field=stray,
            limit=belongs,
            hint=f"Put it where {form.operation} reads it: {belongs}.",
        )
    holder: bulk.Holder = bulk.unread(body, media)
    for field in bulk.MEDIA:
        for index, item in enumerate([holder.query, *holder.items] if form is _score else holder.items):
            if item.has(field, empty=False):
                raise _unreadable(form, f"{_name(form, index)}.{field}")


def _name(form: _Form[T], index: int) -> str:
    """Where an item stands in the body; a score's query is checked before its items."""
    if form is not _score:
        return f"items[{index}]"
    return "query" if index == 0 else f"items[{index - 1}]"


def _no_text(form: _Form[T], index: int, body: bytes, content_type: str | None) -> InvalidInputError:
    """The item has no text; what it has instead, which no request record keeps, is looked up in the body."""
    name = _name(form, index)
    holder = bulk.unread(body, body_type(content_type))
    item = holder.query if name == "query" else holder.items[index - (form is _score)]
    held = next((field for field in (*bulk.MEDIA, "multivector") if item.has(field)), None)
    if held is None:
        return InvalidInputError(f"{name} has no text.", field=name, hint=f'Give every item a "text": {form.example}.')
    return _unreadable(form, f"{name}.{held}")


def _unreadable(form: _Form[T], field: str) -> InvalidInputError:
    return InvalidInputError(
        f"{field} cannot be read: this model reads text.",
        field=field,
        limit="text",
        hint=f'Give every item a "text" and nothing else to read: {form.example}.',
    )


def _check_labels(labels: Sequence[str], limit: int) -> None:
    field = "params.labels"
    if len(labels) > limit:
        raise InvalidInputError(
            f"{len(labels)} labels are too many.", field=field, limit=limit, hint=f"Send at most {limit} labels."
        )
    first: dict[str, int] = {}
    for index, label in enumerate(labels):
        if not label.strip():
            raise InvalidInputError(f"{field}[{index}] is empty.", field=f"{field}[{index}]", hint="Leave it out.")
        if first.setdefault(label, index) != index:
            raise InvalidInputError(
                f"{field}[{index}] repeats {field}[{first[label]}]: {label!r}.",
                field=f"{field}[{index}]",
                hint="Name every label once.",
            )


def _check_schema(schema: dict[str, Any], limits: Limits) -> None:
    nodes, depth, level = 0, 0, [schema]
    while level:
        nodes, depth = nodes + len(level), depth + 1
        if nodes > limits.max_schema_nodes or depth > limits.max_schema_depth:
            raise InvalidInputError(
                "params.output_schema is too large.",
                field="params.output_schema",
                limit=f"{limits.max_schema_nodes} values, {limits.max_schema_depth} deep",
                hint="Ask for less at once.",
            )
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        level = inner


def _parse(form: _Form[T], body: bytes, content_type: str | None, limits: Limits, most: int) -> T:
    media = body_type(content_type)
    if not content_type and body[:64].lstrip()[:1] in (b"{", b"["):
        raise InvalidInputError(
            "The body looks like JSON and was to be read as msgpack: the request has no Content-Type.",
            field="Content-Type",
            hint=f"Send Content-Type: {JSON} (curl: -H 'Content-Type: {JSON}').",
        )
    try:
        if len(body) > limits.max_other_bytes:
            _check_other(body, media, limits.max_other_bytes, most)
        return form.json.decode(body) if media == JSON else form.msgpack.decode(body)
    except bulk.TooManyItems:
        raise _too_many(f"Over {most}", most) from None
    except msgspec.ValidationError as error:
        raise complaints.wrong_field(error, form.example, _ALLOWED) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise complaints.malformed(error, body, media, form.example) from None


def _check_other(body: bytes, media: MediaType, limit: int, most: int) -> None:
    """Refuse megabytes of metadata, options and the like before they become objects, and far too many items."""
    # Each takes two bytes or more that count below, but for the text and the id of an item.
    texts_and_maps = limit // 2 + 2 * (most + 1)
    if media == JSON and bulk.crowded(body, (b"{",), texts_and_maps):
        what, largest = f"The body holds over {texts_and_maps} texts and maps", texts_and_maps
    elif (other := bulk.other_bytes(body, media, most)) > limit:
        what, largest = f"{other} bytes of the body are no text, id, packed vector or medium", limit
    else:
        return
    raise PayloadTooLargeError(
        f"{what}.",
        field="body",
        limit=largest,
        hint="Send less metadata and fewer options, vectors in msgpack, or fewer items at once.",
    )
