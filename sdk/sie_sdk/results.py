"""The bodies of replies that worked, read: from bytes to the records a client hands out. The inverse of ``replies``.

Owns what is accepted from a server, ours or one that follows the published protocol. Not here: errors (``refusals``),
HTTP (``transport``). No number of an array is touched by Python: arrays are views of the bytes that came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from sie_sdk.errors import InvalidInputError
from sie_sdk.refusals import unexpected
from sie_sdk.types import (
    EncodeResult,
    ExtractResult,
    JobStatus,
    ModelInfo,
    Operation,
    PairUsage,
    Quantization,
    ScoreResult,
    SparseVector,
    Timing,
)

if TYPE_CHECKING:
    from sie_sdk.arrays import Array

T = TypeVar("T")
Unpack: TypeAlias = "Callable[[dict[bytes, Any]], Array]"


# -- encode ------------------------------------------------------------------------------------------------------------


class _Values(msgspec.Struct):
    values: dict[bytes, Any]
    scale: float | dict[bytes, Any] | None = None
    offset: float | dict[bytes, Any] | None = None


class _Sparse(msgspec.Struct):
    indices: dict[bytes, Any]
    values: dict[bytes, Any]
    dims: int | None = None


class _EncodeItem(msgspec.Struct):
    id: str | None = None
    dense: _Values | None = None
    sparse: _Sparse | None = None
    multivector: _Values | None = None


class _EncodeReply(msgspec.Struct):
    items: list[_EncodeItem]
    timing: Timing | None = None


_encode_reply = msgspec.msgpack.Decoder(_EncodeReply)


def read_encode(body: bytes) -> list[EncodeResult]:
    """The results in an encode reply, in request order; arrays are read-only views of the decoded bytes.

    msgpack hands each array's bytes out as an object of its own: measured faster than lending them from ``body``
    (9 against 12.5 ms for 4096 x 384), and one kept result does not keep the whole reply alive.

    Raises:
        UnexpectedReplyError: the body is not an encode reply.
    """
    from sie_sdk.arrays import unpack

    try:
        reply = _encode_reply.decode(body)
        return [
            EncodeResult(
                dense=None if item.dense is None else unpack(item.dense.values),
                sparse=None if item.sparse is None else _sparse(item.sparse, unpack),
                multivector=None if item.multivector is None else unpack(item.multivector.values),
                dense_quantization=_quantization(item.dense, unpack),
                multivector_quantization=_quantization(item.multivector, unpack),
                id=item.id,
                timing=reply.timing,
            )
            for item in reply.items
        ]
    except (ValueError, RecursionError, InvalidInputError) as error:
        raise unexpected(body, "an encode result", error) from None


def _sparse(item: _Sparse, unpack: Unpack) -> SparseVector:
    return SparseVector(unpack(item.indices), unpack(item.values), item.dims)


def _quantization(item: _Values | None, unpack: Unpack) -> Quantization | None:
    if item is None or item.scale is None:
        return None
    offset = 0.0 if item.offset is None else item.offset
    return Quantization(_number_or_array(item.scale, unpack), _number_or_array(offset, unpack))


def _number_or_array(value: float | dict[bytes, Any], unpack: Unpack) -> float | Array:
    return unpack(value) if isinstance(value, dict) else value


# -- score and extract -------------------------------------------------------------------------------------------------


_score_reply = msgspec.msgpack.Decoder(ScoreResult)


def read_score(body: bytes) -> ScoreResult:
    """The result in a score reply.

    Raises:
        UnexpectedReplyError: the body is not a score reply.
    """
    try:
        return _score_reply.decode(body)
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "a score result", error) from None


class _ExtractReply(msgspec.Struct):
    items: list[ExtractResult]
    timing: Timing | None = None


_extract_reply = msgspec.msgpack.Decoder(_ExtractReply)


def read_extract(body: bytes) -> list[ExtractResult]:
    """The results in an extract reply, in request order.

    Raises:
        UnexpectedReplyError: the body is not an extract reply.
    """
    try:
        reply = _extract_reply.decode(body)
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "an extract result", error) from None
    if reply.timing is None:
        return reply.items
    return [msgspec.structs.replace(item, timing=reply.timing) for item in reply.items]


# -- any result --------------------------------------------------------------------------------------------------------


class _Shape(msgspec.Struct):
    scores: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    items: list[msgspec.Raw] = []


_shape = msgspec.msgpack.Decoder(_Shape)
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def operation_of(body: bytes) -> Operation | None:
    """Which operation's result a reply is, by its fields; None: it has no items, and may be any's.

    Raises:
        UnexpectedReplyError: the body is not a result.
    """
    try:
        shape = _shape.decode(body)
        if shape.scores is not msgspec.UNSET:
            return "score"
        return None if not shape.items else "extract" if "entities" in _fields.decode(shape.items[0]) else "encode"
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "a result", error) from None


class Head(msgspec.Struct, frozen=True):
    """What a result says of itself beside its items."""

    model: str = ""
    timing: Timing = Timing()
    usage: PairUsage = PairUsage()


_head = msgspec.msgpack.Decoder(Head)


def read_head(body: bytes) -> Head:
    """The head of any result; its items are skipped, not decoded (0.4 us for one text, 0.2 ms for 4096 x 384).

    Raises:
        UnexpectedReplyError: the body is not a result.
    """
    try:
        return _head.decode(body)
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "a result", error) from None


# -- jobs and models ---------------------------------------------------------------------------------------------------


class _Accepted(msgspec.Struct):
    job: JobStatus


class _ModelList(msgspec.Struct):
    models: list[ModelInfo]


def read_job(body: bytes, content_type: str | None) -> JobStatus:
    """The job a 202 stands for, msgpack or JSON by its type.

    Raises:
        UnexpectedReplyError: the body names no job.
    """
    return read_any(body, content_type, _Accepted).job


def read_models(body: bytes, content_type: str | None) -> list[ModelInfo]:
    """The rows of a ``GET /v1/models`` reply; errors as :func:`read_job`."""
    return read_any(body, content_type, _ModelList).models


def read_model(body: bytes, content_type: str | None) -> ModelInfo:
    """The one row of a ``GET /v1/models/{name}`` reply; errors as :func:`read_job`."""
    return read_any(body, content_type, ModelInfo)


def read_any(body: bytes, content_type: str | None, kind: type[T]) -> T:
    try:
        if "msgpack" in (content_type or "").lower():
            return msgspec.msgpack.decode(body, type=kind)
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "of this protocol", error) from None
