"""Quantize: float32 vectors in the number format a caller asks for, each vector by its own scale.

Owns the arithmetic of the formats and their error bounds. Which formats an output allows is ``outputs``; going back to
float is the caller's (``types.Quantization``, docs/outputs.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sie_sdk.errors import InferenceError, InvalidInputError
from sie_sdk.types import OutputDtype

Floats: TypeAlias = npt.NDArray[np.float32]

FLOAT16_LIMIT = 65520.0
"""Magnitudes from here on round to infinity in float16, whose largest number is 65504."""
SMALLEST_SCALE = float(np.finfo(np.float32).smallest_normal)
"""Below it a scale would be subnormal and lose its digits; a row that calls for such a scale counts as constant."""


class Quantized(NamedTuple):
    """Vectors in another number format: ``x ~= rows * scale + offset``.

    ``rows``: ``[n, d]`` in the dtype asked for; for bits uint8 ``[n, ceil(d / 8)]``. ``scale``: float32 ``[n]`` for
    int8 and uint8. ``offset``: float32 ``[n]`` for uint8. None where the dtype has none.
    """

    rows: npt.NDArray[Any]
    scale: Floats | None = None
    offset: Floats | None = None


def quantize(vectors: Floats, dtype: OutputDtype) -> Quantized:
    """The vectors, float32 ``[n, d]``, in the format ``dtype``. Within a row all formats keep the order of the numbers.

    - ``float32``: the same array. ``float16``: rounded to nearest, error up to ``max(2**-11 * |x|, 2**-25)``.
    - ``int8``: ``round(x / scale)`` with ``scale = max|x| / 127``, error up to ``scale / 2``.
    - ``uint8``: ``round((x - offset) / scale)`` with ``scale = (max - min) / 255``, ``offset = min``; likewise.
    - ``binary``, ``ubinary`` (the same, as in the published protocol): bits of ``x > 0``, eight to a byte, the first
      in the highest place; the last byte is padded with zeros. No way back to ``x``.

    The bounds hold up to the rounding of float32 itself. Rows of zeros (int8) or of one value (uint8) get the scale 0
    and are exact; so do rows whose scale would be below `SMALLEST_SCALE`, with an error of up to 3e-36.

    Raises:
        InvalidInputError: float16 cannot hold a number; names ``params.output_dtype`` and the row.
        InferenceError: float16, int8 or uint8 of a row that is not finite; names the row.
    """
    match dtype:
        case "float32":
            return Quantized(vectors)
        case "float16":
            return Quantized(_float16(vectors))
        case "int8":
            return _int8(vectors)
        case "uint8":
            return _uint8(vectors)
        case "binary" | "ubinary":
            return Quantized(np.packbits(vectors > 0, axis=1))


def _float16(vectors: Floats) -> npt.NDArray[np.float16]:
    largest = _largest(vectors)
    _check_finite(largest)
    if (largest >= FLOAT16_LIMIT).any():
        row = int(np.argmax(largest >= FLOAT16_LIMIT))
        raise InvalidInputError(
            f"Vector {row} holds a number of magnitude {largest[row]:.6g}, which float16 cannot hold.",
            field="params.output_dtype",
            limit=float(np.finfo(np.float16).max),
            hint="Ask for float32, int8 or uint8.",
            row=row,
        )
    return vectors.astype(np.float16)


def _int8(vectors: Floats) -> Quantized:
    largest = _largest(vectors)
    _check_finite(largest)
    scale = _scale(largest / np.float32(127))
    # Through the inverse, which is at most 2**126: x * 127 could overflow.
    levels = vectors * _inverse(scale)[:, None]
    np.rint(levels, out=levels)
    return Quantized(levels.astype(np.int8), scale)


def _uint8(vectors: Floats) -> Quantized:
    low = vectors.min(axis=1, initial=np.inf)
    # In float64, because max - min of float32 numbers can overflow.
    span = vectors.max(axis=1, initial=-np.inf).astype(np.float64) - low
    _check_finite(span)
    scale = _scale((span / 255).astype(np.float32))
    levels = np.subtract(vectors, low[:, None], dtype=np.float64)
    levels *= _inverse(scale)[:, None]
    np.rint(levels, out=levels)
    return Quantized(levels.astype(np.uint8), scale, low)


def _largest(vectors: Floats) -> Floats:
    """The largest magnitude of each row, float32 ``[n]``, without a copy of the vectors' size."""
    largest: Floats = np.maximum(vectors.max(axis=1, initial=0), -vectors.min(axis=1, initial=0))
    return largest


def _check_finite(extents: npt.NDArray[np.floating[Any]]) -> None:
    """The rows' extents are not finite where one of a row's numbers is not."""
    if not (finite := np.isfinite(extents)).all():
        row = int(np.argmin(finite))
        raise InferenceError(f"Vector {row} is not finite.", row=row)


def _scale(wanted: Floats) -> Floats:
    """The scales, with 0 for those too small to be exact."""
    scale: Floats = np.where(wanted < SMALLEST_SCALE, np.float32(0), wanted)
    return scale


def _inverse(scale: Floats) -> Floats:
    """``1 / scale``, and 0 for 0: rows without extent become zeros."""
    inverse: Floats = np.zeros_like(scale)
    np.divide(1, scale, out=inverse, where=scale > 0)
    return inverse
