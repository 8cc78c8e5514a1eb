"""The msgpack bodies of replies that worked, as pure functions: the bundle's way from arrays to bytes.

Owns the form of each result (wire protocol 2.3), the ranking of scores, jobs, and the way to JSON. Not here: reading
them (``results``), bodies of requests (``wire``) and of errors (``refusals``), computing anything.
No number of an array is touched by Python: rows are lent to msgpack as they lie in memory, and orjson writes JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sie_sdk import arrays
from sie_sdk.chunks import ranked
from sie_sdk.errors import InferenceError
from sie_sdk.outputs import WIRE_DTYPES, DenseOutput, MultivectorOutput, Output, Outputs, SparseOutput
from sie_sdk.types import (
    Classification,
    Entity,
    JobStatus,
    OutputDtype,
    PairUsage,
    ScoreEntry,
    Timing,
    Usage,
)

_to_msgpack = msgspec.msgpack.Encoder()
_to_json = msgspec.json.Encoder()


# -- encode ------------------------------------------------------------------------------------------------------------


def encode(model: str, ids: Sequence[str | None], outputs: Outputs, timing: Timing, usage: Usage) -> bytes:
    """The msgpack reply body of encode.

    Args:
        model: the model's name as it was asked for.
        ids: the items' own ids in request order; an item without one gets none back.
        outputs: the representations computed, each for all items in request order.
        timing: the request's stages, in milliseconds.
        usage: tokens computed.

    Raises:
        ValueError: the outputs contradict each other or their own dtype and dims; a bug of the caller.
    """
    items: list[dict[str, Any]] = [{} if own is None else {"id": own} for own in ids]
    for name, output in outputs.items():
        for item, packed in zip(items, _packed(output), strict=True):
            item[name] = packed
    return _to_msgpack.encode({"model": model, "timing": timing, "usage": usage, "items": items})


def _packed(output: Output) -> list[dict[str, Any]]:
    match output:
        case DenseOutput():
            return _packed_dense(output)
        case SparseOutput():
            return _packed_sparse(output)
        case MultivectorOutput():
            return _packed_multivector(output)


def _packed_dense(output: DenseOutput) -> list[dict[str, Any]]:
    _check_rows([output.rows], output.dims, output.dtype)
    label = {"dims": int(output.dims), "dtype": _label(output.dtype)}
    packed: list[dict[str, Any]] = [{**label, "values": row} for row in arrays.pack_rows(output.rows)]
    for name in ("scale", "offset"):
        column: npt.NDArray[np.float32] | None = getattr(output, name)
        if column is not None:
            for item, number in zip(packed, column.tolist(), strict=True):
                item[name] = number
    return packed


def _packed_sparse(output: SparseOutput) -> list[dict[str, Any]]:
    indices = arrays.pack_ragged([np.asarray(index, "<i4") for index, _ in output.rows])
    values = [np.asarray(value, WIRE_DTYPES[output.dtype]) for _, value in output.rows]
    label = {"dims": int(output.dims), "dtype": output.dtype}
    return [
        {**label, "indices": index, "values": value}
        for index, value in zip(indices, arrays.pack_ragged(values), strict=True)
    ]


def _packed_multivector(output: MultivectorOutput) -> list[dict[str, Any]]:
    _check_rows(output.rows, output.dims, output.dtype)
    label = {"token_dims": int(output.dims), "dtype": _label(output.dtype)}
    packed: list[dict[str, Any]] = [
        {**label, "num_tokens": len(rows), "values": arrays.pack(rows)} for rows in output.rows
    ]
    for name in ("scale", "offset"):
        columns: Sequence[npt.NDArray[np.float32]] | None = getattr(output, name)
        if columns is not None:
            for item, column in zip(packed, columns, strict=True):
                item[name] = arrays.pack(np.asarray(column, "<f4"))
    return packed


def _check_rows(matrices: Iterable[npt.NDArray[Any]], dims: int, dtype: OutputDtype) -> None:
    wanted, width = WIRE_DTYPES[dtype], -(-dims // 8) if dtype in ("binary", "ubinary") else dims
    for matrix in matrices:
        if matrix.dtype != wanted or matrix.ndim != 2 or matrix.shape[1] != width:
            raise ValueError(
                f"Rows of {dims} dims in {dtype} are {wanted} [n, {width}], not {matrix.dtype} {list(matrix.shape)}."
            )


def _label(dtype: OutputDtype) -> str:
    """The published protocol labels both packings of bits ``binary``: they are the same bytes."""
    return "binary" if dtype == "ubinary" else dtype


# -- score -------------------------------------------------------------------------------------------------------------


class _ScoreReply(msgspec.Struct, omit_defaults=True):
    model: str
    timing: Timing
    usage: PairUsage
    scores: list[ScoreEntry]
    query_id: str | None = None


def score(
    model: str,
    scores: npt.NDArray[np.float32],
    ids: Sequence[str | None],
    query_id: str | None,
    timing: Timing,
    usage: Usage,
) -> bytes:
    """The msgpack reply body of score: best first, equal scores in request order.

    Args:
        model: the model's name as it was asked for.
        scores: ``[n]``, one per item in request order.
        ids: the items' own ids; an item without one is called ``item-{index}``.
        query_id: the query's own id; left out without one.
        timing: the request's stages, in milliseconds.
        usage: tokens computed; the number of pairs is added here.

    Raises:
        InferenceError: a score is not finite; ``field`` names its item.
        ValueError: there are not as many scores as ids; a bug of the caller.
    """
    if not np.isfinite(scores).all():
        index = int(np.argmin(np.isfinite(scores)))
        raise InferenceError(f"The score of items[{index}] is not finite.", field=f"items[{index}]")
    entries = [
        ScoreEntry(own if own is not None else f"item-{index}", value, 0, index)
        for index, (own, value) in enumerate(zip(ids, scores.tolist(), strict=True))
    ]
    whole = PairUsage(input_tokens=usage.input_tokens, pairs=len(entries))
    return _to_msgpack.encode(_ScoreReply(model, timing, whole, ranked(entries), query_id))


# -- extract -----------------------------------------------------------------------------------------------------------


class Extracted(NamedTuple):
    """What was found in one item, to be serialised; either may be empty."""

    entities: Sequence[Entity] = ()
    classifications: Sequence[Classification] = ()


def extract(model: str, ids: Sequence[str | None], items: Sequence[Extracted], timing: Timing, usage: Usage) -> bytes:
    """The msgpack reply body of extract; arguments as :func:`encode`. An item without an id is ``item-{index}``."""
    found = [
        {
            "id": own if own is not None else f"item-{index}",
            "entities": item.entities,
            "classifications": item.classifications,
            "relations": (),
            "objects": (),
            "data": {},
        }
        for index, (own, item) in enumerate(zip(ids, items, strict=True))
    ]
    return _to_msgpack.encode({"model": model, "timing": timing, "usage": usage, "items": found})


# -- any reply ---------------------------------------------------------------------------------------------------------


LARGE_BYTES = 1024 * 1024
"""What becomes JSON one item at a time."""
_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_list = msgspec.msgpack.Decoder(list[msgspec.Raw])


def to_json(body: bytes) -> bytes:
    """A msgpack reply body as JSON; arrays become plain (nested) lists."""
    if len(body) <= LARGE_BYTES:
        return _to_json.encode(_plain(msgspec.msgpack.decode(body)))
    # So that it is not there twice as a whole, and does not keep Python's lock all the while.
    fields = _fields.decode(body)
    items = [msgspec.Raw(_one_to_json(item)) for item in _list.decode(fields.pop("items", b"\x90"))]
    head = {name: msgspec.Raw(_one_to_json(value)) for name, value in fields.items()}
    return _to_json.encode({**head, "items": items} if items else head)


def _one_to_json(value: msgspec.Raw) -> bytes:
    return _to_json.encode(_plain(msgspec.msgpack.decode(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if b"nd" in value:
            return msgspec.Raw(arrays.to_json(arrays.unpack(value)))
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def job_body(job: JobStatus) -> bytes:
    """The JSON body of a 202: ``{"job": {id, state, retry_after_s, message}}``."""
    return _to_json.encode({"job": job})
