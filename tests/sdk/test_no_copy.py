"""Arrays come out of a reply as views: nothing is copied after decoding, and no number passes through Python."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from sie_sdk import replies, results
from sie_sdk.outputs import DenseOutput, MultivectorOutput, Outputs, SparseOutput
from sie_sdk.types import EncodeResult, Timing, Usage

ROWS, DIMS = 1000, 1024


def body(outputs: Outputs, count: int) -> bytes:
    return replies.encode("m", [None] * count, outputs, Timing(), Usage())


def arrays(result: EncodeResult) -> list[np.ndarray]:
    sparse = () if result.sparse is None else (result.sparse.indices, result.sparse.values)
    return [array for array in (result.dense, result.multivector, *sparse) if array is not None]


def test_every_array_is_a_read_only_view_of_bytes_that_are_its_own() -> None:
    row = np.arange(3 * 8, dtype=np.float32).reshape(3, 8)
    sparse = (np.array([1, 5], np.int32), np.array([0.5, 2], np.float32))
    outputs: Outputs = {
        "dense": DenseOutput(row[:1], 8, "float32"),
        "sparse": SparseOutput([sparse], 30, "float32"),
        "multivector": MultivectorOutput([row], 8, "float32"),
    }
    (result,) = results.read_encode(body(outputs, 1))
    found = arrays(result)
    assert len(found) == 4
    for array in found:
        assert not array.flags.writeable and not array.flags.owndata
        held = array if array.base is None else array.base
        while isinstance(held, np.ndarray) and held.base is not None:
            held = held.base
        assert isinstance(held, bytes)
        assert np.shares_memory(array, np.frombuffer(held, array.dtype))
        assert len(held) == array.nbytes, "one kept result does not keep its reply alive"


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "<f4"), ("int8", "i1")])
def test_reading_a_reply_takes_the_memory_of_its_arrays_once(dtype: str, kind: str) -> None:
    rows = np.ones((ROWS, DIMS), kind)
    scale = np.ones(ROWS, np.float32) if dtype == "int8" else None
    reply = body({"dense": DenseOutput(rows, DIMS, dtype, scale)}, ROWS)  # type: ignore[arg-type]  # of the test's own
    results.read_encode(reply)
    tracemalloc.start()
    read = results.read_encode(reply)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(read) == ROWS
    overhead = 2000 * ROWS  # the result, its array object, the decoded map
    assert peak < rows.nbytes + overhead
