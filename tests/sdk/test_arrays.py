"""The wire's array maps: what packs also unpacks, byte for byte as the published clients expect it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import arrays
from sie_sdk.errors import InvalidInputError, SIEError

DTYPES = [f"{order}{code}" for code in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8") for order in "<>"]
DTYPES += ["|b1", "|i1", "|u1"]

shapes = st.lists(st.integers(0, 4), max_size=4)
array_maps: st.SearchStrategy[dict[bytes, Any]] = st.fixed_dictionaries(
    {},
    optional={
        b"nd": st.booleans() | st.none(),
        b"type": st.sampled_from([*DTYPES, "<c8", "|O", ""]) | st.integers(),
        b"kind": st.sampled_from([b"", "", b"V", "O"]),
        b"shape": st.lists(st.integers(-1, 3) | st.booleans(), max_size=9) | st.none() | st.text(max_size=2),
        b"data": st.binary(max_size=32) | st.text(max_size=2),
    },
)


def sample(dtype: str, shape: list[int]) -> npt.NDArray[Any]:
    return (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)


@given(st.sampled_from(DTYPES), shapes)
def test_every_dtype_and_shape_survives_msgpack(dtype: str, shape: list[int]) -> None:
    array = sample(dtype, shape)
    back = arrays.unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(arrays.pack(array))))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


@given(array_maps)
def test_any_map_is_an_array_or_a_typed_error(obj: dict[bytes, Any]) -> None:
    try:
        array = arrays.unpack(obj)
    except SIEError as error:
        assert isinstance(error, InvalidInputError)
    else:
        assert array.nbytes == len(obj[b"data"])


@given(st.sampled_from(DTYPES), st.integers(0, 5), st.integers(0, 5))
def test_packed_rows_are_the_rows_packed(dtype: str, rows: int, columns: int) -> None:
    matrix = sample(dtype, [rows, columns])
    assert arrays.pack_rows(matrix) == [arrays.pack(row) for row in matrix]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=5))
def test_packed_ragged_rows_are_the_rows_packed(dtype: str, lengths: list[int]) -> None:
    rows = [sample(dtype, [length]) for length in lengths]
    assert arrays.pack_ragged(rows) == [arrays.pack(row) for row in rows]


def test_the_bytes_are_those_of_the_published_clients() -> None:
    assert msgspec.msgpack.encode(arrays.pack(np.array([1, -2], "<f4"))) == (
        b"\x85\xc4\x02nd\xc3\xc4\x04type\xa3<f4\xc4\x04kind\xc4\x00\xc4\x05shape\x91\x02"
        b"\xc4\x04data\xc4\x08\x00\x00\x80\x3f\x00\x00\x00\xc0"
    )


def test_unpacked_arrays_are_read_only_views() -> None:
    data = bytearray(8)
    array = arrays.unpack({b"nd": True, b"type": "<f4", b"shape": [2], b"data": memoryview(data)})
    data[3] = 0x40
    assert array[0] == 2.0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_packing_lends_the_memory_of_a_contiguous_array() -> None:
    array = np.zeros(3, "<f4")
    data = arrays.pack(array)[b"data"]
    array[0] = 2.0
    assert bytes(data[:4]) == b"\x00\x00\x00\x40"


def test_arrays_that_are_not_contiguous_are_packed_in_c_order() -> None:
    array = np.arange(6, dtype="<i2").reshape(2, 3).T
    np.testing.assert_array_equal(arrays.unpack(arrays.pack(array)), array)


def test_a_scalar_map_needs_no_shape() -> None:
    assert arrays.unpack({b"nd": False, b"type": "<i4", b"data": b"\x05\0\0\0"}) == 5


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({b"type": "<c8"}, "type"),
        ({b"type": b"<f4"}, "type"),
        ({b"kind": b"O"}, "kind"),
        ({b"shape": [-2]}, "shape"),
        ({b"shape": [True, 2]}, "shape"),
        ({b"shape": [1] * 9}, "shape"),
        ({b"shape": [3]}, "12 bytes, not 8"),
        ({b"shape": [2**62, 2]}, "bytes, not 8"),
        ({b"data": "text"}, "binary"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(change: dict[bytes, Any], complaint: str) -> None:
    obj = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2], b"data": bytes(8)} | change
    with pytest.raises(InvalidInputError, match=complaint):
        arrays.unpack(obj)


def test_a_map_with_string_keys_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not an array map"):
        arrays.unpack({"nd": True, "type": "<f4", "shape": [0], "data": b""})  # type: ignore[dict-item]


@pytest.mark.parametrize("array", [np.array(["a"]), np.zeros(2, "<c8"), np.zeros([1] * 9)])
def test_what_the_wire_has_no_form_for_is_not_packed(array: npt.NDArray[Any]) -> None:
    with pytest.raises(InvalidInputError):
        arrays.pack(array)


def test_only_a_matrix_has_rows() -> None:
    with pytest.raises(InvalidInputError, match="two dimensions"):
        arrays.pack_rows(np.zeros(3))
    with pytest.raises(InvalidInputError, match="vectors"):
        arrays.pack_ragged([np.zeros((2, 2))])
