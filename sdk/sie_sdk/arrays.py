"""numpy arrays as the wire's binary-keyed maps: ``{nd, type, kind, shape, data}``, every key a msgpack bin.

Owns the map's form and its checks (wire protocol 2.2), and an array's JSON. Not here: msgpack and the bodies around the
maps (``wire``).
Nothing is copied in either direction: packing lends the array's memory, unpacking returns a view of the map's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sie_sdk.errors import InvalidInputError

Array: TypeAlias = npt.NDArray[Any]

MAX_DIMENSIONS = 8

_SIZED = ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")
_CODES = [order + code for code in _SIZED for order in "<>"] + ["|b1", "|i1", "|u1"]
_DTYPES = {code: np.dtype(code) for code in _CODES}


def pack(array: npt.ArrayLike) -> dict[bytes, Any]:
    """The wire form of an array of any shape; ``data`` is a memoryview of it, copied only when it is not C-contiguous.

    Raises:
        InvalidInputError: the dtype is not one the wire knows, or there are more than 8 dimensions.
    """
    dense = np.asarray(array, order="C")
    _known_dtype_of(dense)
    if dense.ndim > MAX_DIMENSIONS:
        raise InvalidInputError(f"The array has {dense.ndim} dimensions.", limit=MAX_DIMENSIONS, hint="Reshape it.")
    return _head(dense.dtype, list(dense.shape)) | {b"data": _bytes_of(dense)}


def pack_rows(matrix: npt.NDArray[Any]) -> list[dict[bytes, Any]]:
    """``[pack(row) for row in matrix]`` of a ``[n, d]`` matrix, without making ``n`` numpy objects on the way.

    Raises:
        InvalidInputError: as :func:`pack`, or the matrix does not have two dimensions.
    """
    if matrix.ndim != 2:
        raise InvalidInputError(f"Rows need a matrix of two dimensions, not {matrix.ndim}.")
    dense = np.asarray(matrix, order="C")
    _known_dtype_of(dense)
    head, data, step = _head(dense.dtype, [dense.shape[1]]), _bytes_of(dense), dense.shape[1] * dense.itemsize
    return [{**head, b"data": data[row * step : (row + 1) * step]} for row in range(len(dense))]


def pack_ragged(rows: Sequence[npt.NDArray[Any]]) -> list[dict[bytes, Any]]:
    """``[pack(row) for row in rows]`` of vectors of different lengths and one dtype; they are copied once, together.

    Raises:
        InvalidInputError: as :func:`pack`, or a row has more than one dimension.
    """
    if not rows:
        return []
    if any(row.ndim != 1 for row in rows):
        raise InvalidInputError("Ragged rows are vectors.")
    joined = np.concatenate(rows, dtype=rows[0].dtype, casting="no")
    dtype, data = _known_dtype_of(joined), _bytes_of(joined)
    packed, start = [], 0
    for row in rows:
        end = start + len(row) * dtype.itemsize
        packed.append(_head(dtype, [len(row)]) | {b"data": data[start:end]})
        start = end
    return packed


def unpack(obj: Mapping[bytes, Any]) -> npt.NDArray[Any]:
    """The array a wire map stands for, as a read-only view of the map's ``data``. Extra keys are ignored.

    Raises:
        InvalidInputError: a key is missing, or dtype, shape and number of bytes do not agree.
    """
    try:
        code, data = obj[b"type"], obj[b"data"]
        shape = obj[b"shape"] if obj[b"nd"] else []
    except (KeyError, TypeError):
        raise InvalidInputError(
            "This is not an array map.", hint="An array has the binary keys nd, type, shape and data."
        ) from None
    dtype = _known_dtype(code)
    if obj.get(b"kind"):
        raise InvalidInputError("An array's kind must be empty.", field="kind")
    if not _is_shape(shape):
        raise InvalidInputError(
            f"An array's shape is a list of at most {MAX_DIMENSIONS} sizes.", field="shape", limit=MAX_DIMENSIONS
        )
    if type(data) is bytes and len(shape) == 1 and len(data) == shape[0] * dtype.itemsize:
        # What nearly every array is: a vector in bytes, which numpy gives out read-only by itself. Twice as fast.
        return np.frombuffer(data, dtype)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidInputError("An array's data is binary.", field="data")
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    if size != (expected := math.prod(shape) * dtype.itemsize):
        raise InvalidInputError(
            f"An array of shape {shape} and type {code} has {expected} bytes, not {size}.", field="data"
        )
    view = np.frombuffer(data, dtype).reshape(shape)
    view.flags.writeable = False
    return view


def to_json(array: npt.NDArray[Any]) -> bytes:
    """An array as (nested) lists, each number in as few digits as bring it back (float16 in those of float32)."""
    import orjson  # here, so that the SDK, which reads msgpack, starts without it

    native = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    return orjson.dumps(native, option=orjson.OPT_SERIALIZE_NUMPY)


def _head(dtype: np.dtype[Any], shape: list[int]) -> dict[bytes, Any]:
    return {b"nd": True, b"type": dtype.str, b"kind": b"", b"shape": shape}


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _known_dtype_of(array: npt.NDArray[Any]) -> np.dtype[Any]:
    return _known_dtype(array.dtype.str)


def _known_dtype(code: object) -> np.dtype[Any]:
    dtype = _DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise InvalidInputError(
            f"Arrays of type {code!r} do not travel.", field="type", hint=f"Use one of {', '.join(_CODES)}."
        )
    return dtype


def _is_shape(shape: object) -> bool:
    if type(shape) is list and len(shape) == 1:
        return type(shape[0]) is int and shape[0] >= 0
    return (
        isinstance(shape, (list, tuple))
        and len(shape) <= MAX_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in shape)
    )
