"""The number formats keep their error bounds, the order of the numbers and the ranking; nothing turns into infinity."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sie_sdk.errors import InferenceError, InvalidInputError
from sie_sdk.outputs import WIRE_DTYPES
from sie_sdk.quantize import SMALLEST_SCALE, Quantized, quantize
from sie_sdk.types import OutputDtype, Quantization

Floats: TypeAlias = npt.NDArray[np.float32]
Exact: TypeAlias = npt.NDArray[np.float64]
UNIT = 2.0**-24
"""Half the distance of float32 numbers, relative."""

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
magnitudes = st.sampled_from([1e-45, 1e-38, 1e-30, 1e-3, 1.0, 1e4, 1e30, 1e38])
shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20)
small = hnp.arrays(np.float32, shapes, elements=st.floats(-1, 1, width=32))
vectors = hnp.arrays(np.float32, shapes, elements=numbers) | st.builds(
    lambda rows, size: (rows.astype(np.float64) * size).astype(np.float32), small, magnitudes
)
held_by_float16 = hnp.arrays(np.float32, shapes, elements=st.floats(-65504, 65504, width=32))


def opened(made: Quantized) -> Exact:
    """What quantised rows stand for, by the formula in the documentation, in float64."""
    values = made.rows.astype(np.float64)
    if made.scale is not None:
        values *= made.scale[:, None]
    if made.offset is not None:
        values += made.offset[:, None]
    return values


def bound(rows: Floats, scale: Floats) -> Exact:
    """Half a step, the float32 rounding of the steps' number and the row's, and what counts as constant."""
    wide = scale[:, None].astype(np.float64)
    least = 255 * SMALLEST_SCALE * (wide == 0)
    return np.asarray(wide * (0.5 + 255 * 4 * UNIT) + least + np.abs(rows.astype(np.float64)) * 2 * UNIT)


@given(vectors)
@settings(deadline=None)
def test_int8_is_within_half_a_step_of_a_127th_of_the_largest(rows: Floats) -> None:
    made = quantize(rows, "int8")
    assert made.rows.dtype == np.int8 and made.rows.shape == rows.shape and made.offset is None
    assert made.scale is not None and made.scale.dtype == np.float32 and made.scale.shape == (len(rows),)
    assert made.rows.min() >= -127
    assert (np.abs(opened(made) - rows) <= bound(rows, made.scale)).all()
    for row, scale in zip(rows.astype(np.float64), made.scale, strict=True):
        assert scale == 0 or scale == pytest.approx(np.abs(row).max() / 127, rel=1e-6)


@given(vectors)
@settings(deadline=None)
def test_uint8_is_within_half_a_step_of_a_255th_of_the_range(rows: Floats) -> None:
    made = quantize(rows, "uint8")
    assert made.rows.dtype == np.uint8 and made.rows.shape == rows.shape
    assert made.scale is not None and made.scale.dtype == np.float32
    assert made.offset is not None and made.offset.dtype == np.float32
    assert (np.abs(opened(made) - rows) <= bound(rows, made.scale)).all()
    for row, scale, offset in zip(rows.astype(np.float64), made.scale, made.offset, strict=True):
        assert offset == row.min()
        assert scale == 0 or scale == pytest.approx((row.max() - row.min()) / 255, rel=1e-6)


@given(small)
@settings(deadline=None)
def test_the_sdk_goes_back_within_the_same_bounds(rows: Floats) -> None:
    for dtype in ("int8", "uint8"):
        made = quantize(rows, dtype)
        assert made.scale is not None
        back = Quantization(made.scale, 0.0 if made.offset is None else made.offset).dequantise(made.rows)
        assert (np.abs(back - rows) <= bound(rows, made.scale) + 4 * UNIT).all()


@given(held_by_float16)
@settings(deadline=None)
def test_float16_is_rounded_to_nearest(rows: Floats) -> None:
    made = quantize(rows, "float16")
    assert made.rows.dtype == np.float16 and made.scale is None and made.offset is None
    assert (np.abs(made.rows.astype(np.float64) - rows) <= np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25)).all()


@given(vectors)
@settings(deadline=None)
def test_within_a_row_the_order_of_the_numbers_stays(rows: Floats) -> None:
    dtypes: list[OutputDtype] = ["int8", "uint8"]
    if np.abs(rows).max() < 65504:
        dtypes.append("float16")
    for dtype in dtypes:
        for row, made in zip(rows, quantize(rows, dtype).rows, strict=True):
            assert (np.diff(made[np.argsort(row)].astype(np.float64)) >= 0).all(), dtype


@given(vectors)
@settings(deadline=None)
def test_both_binaries_are_the_bits_of_the_positive_numbers_first_bit_high(rows: Floats) -> None:
    made = quantize(rows, "binary")
    assert np.array_equal(made.rows, quantize(rows, "ubinary").rows)
    assert made.rows.dtype == np.uint8 and made.rows.shape == (len(rows), -(-rows.shape[1] // 8))
    for row, packed in zip(rows, made.rows, strict=True):
        bits = "".join("1" if number > 0 else "0" for number in row)
        padded = bits.ljust(8 * len(packed), "0")
        assert [int(padded[place : place + 8], 2) for place in range(0, len(padded), 8)] == packed.tolist()


@given(vectors)
@settings(deadline=None)
def test_float32_is_the_array_itself(rows: Floats) -> None:
    assert quantize(rows, "float32").rows is rows


@pytest.mark.parametrize("dtype", get_args(OutputDtype))
def test_every_format_has_the_dtype_of_the_wire_also_without_rows(dtype: OutputDtype) -> None:
    made = quantize(np.zeros((0, 16), np.float32), dtype)
    assert made.rows.dtype == WIRE_DTYPES[dtype] and len(made.rows) == 0
    assert made.scale is None or made.scale.shape == (0,)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 0.25, -3.0, 1e30, -3.4e38])
def test_rows_of_one_value_are_safe(value: float) -> None:
    rows = np.full((2, 9), value, np.float32)
    low = quantize(rows, "uint8")
    assert np.array_equal(opened(low), rows), "exact, whatever the value"
    high = quantize(rows, "int8")
    assert np.allclose(opened(high), rows, rtol=1e-6, atol=127 * SMALLEST_SCALE)


def test_a_row_over_the_whole_range_of_float32_does_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    rows = np.array([[-largest, 0, largest]], np.float32)
    for dtype in ("int8", "uint8"):
        made = quantize(rows, dtype)
        assert made.scale is not None and np.isfinite(made.scale).all()
        assert (np.abs(opened(made) - rows) <= bound(rows, made.scale)).all()


def test_rows_do_not_share_their_scale() -> None:
    rows = np.array([[1e30, -1e30, 0], [1, -1, 0], [1e-30, -1e-30, 0], [0, 0, 0]], np.float32)
    for dtype in ("int8", "uint8"):
        together = quantize(rows, dtype)
        for number in range(len(rows)):
            alone = quantize(rows[number : number + 1], dtype)
            assert np.array_equal(together.rows[number], alone.rows[0]) and together.scale is not None
            assert alone.scale is not None and together.scale[number] == alone.scale[0]
    assert quantize(rows, "int8").rows[:, :2].tolist() == [[127, -127]] * 3 + [[0, 0]]


@pytest.mark.parametrize("value", [65520.0, -65520.0, 7e4, 1e30, -3.4e38])
def test_a_number_float16_cannot_hold_is_refused_by_name(value: float) -> None:
    rows = np.zeros((3, 4), np.float32)
    rows[1, 2] = value
    with pytest.raises(InvalidInputError) as caught:
        quantize(rows, "float16")
    assert caught.value.field == "params.output_dtype" and caught.value.limit == 65504
    assert caught.value.details == {"row": 1} and "float32" in str(caught.value)
    rows[1, 2] = np.nextafter(np.float32(value), np.float32(0)) if abs(value) == 65520 else 65504
    assert np.isfinite(quantize(rows, "float16").rows).all()


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_an_inference_error(dtype: OutputDtype, value: float) -> None:
    rows = np.zeros((3, 4), np.float32)
    rows[2, 0] = value
    with pytest.raises(InferenceError) as caught:
        quantize(rows, dtype)
    assert caught.value.details == {"row": 2}


def embeddings(seed: int, documents: int, queries: int, dims: int) -> tuple[Floats, Floats]:
    """Unit vectors in clusters around a common direction, as text embeddings are, and queries near some of them."""
    random = np.random.RandomState(seed)
    centres = random.standard_normal((40, dims)) / np.sqrt(dims)
    common = 0.7 * random.standard_normal(dims) / np.sqrt(dims)
    noise = 0.7 * random.standard_normal((documents, dims)) / np.sqrt(dims)
    rows = common + centres[random.randint(40, size=documents)] + noise
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    near = rows[random.randint(documents, size=queries)]
    near = near + 0.5 * random.standard_normal((queries, dims)) / np.sqrt(dims)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    return rows.astype(np.float32), near.astype(np.float32)


def best(scores: npt.NDArray[Any], count: int = 10) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def recall(found: npt.NDArray[np.intp], wanted: npt.NDArray[np.intp]) -> float:
    return float(np.mean([np.isin(own, theirs).mean() for own, theirs in zip(wanted, found, strict=True)]))


def signs(rows: Floats) -> Exact:
    return np.unpackbits(quantize(rows, "binary").rows, axis=1, count=rows.shape[1]).astype(np.float64) * 2 - 1


def test_the_ranking_survives_quantisation() -> None:
    documents, queries = embeddings(seed=1, documents=3000, queries=100, dims=384)
    wanted = best(queries @ documents.T)
    measured = {
        dtype: recall(best(queries @ opened(quantize(documents, dtype)).T), wanted)
        for dtype in ("float16", "int8", "uint8")
    }
    assert measured["float16"] >= 0.99 and measured["int8"] >= 0.97 and measured["uint8"] >= 0.97, measured
    whole = quantize(documents, "int8").rows.astype(np.float64)
    unscaled = recall(best(queries @ whole.T), wanted)
    assert unscaled < 0.7, "scores without the scale would do as well: the documentation says they do not"

    nearest = best(signs(queries) @ signs(documents).T, 100)
    assert recall(nearest[:, :10], wanted) >= 0.3
    again = queries @ opened(quantize(documents, "int8")).T
    outside = np.ones_like(again, dtype=bool)
    np.put_along_axis(outside, nearest, False, axis=1)
    assert recall(best(np.where(outside, -np.inf, again)), wanted) >= 0.9, "bits find, int8 ranks"
