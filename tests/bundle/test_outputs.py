"""Outputs: numbers that are not finite are found, by one look at all of them and row by row."""

from __future__ import annotations

import numpy as np
import pytest

from sie_bundle.engine.outputs import all_finite, first_not_finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_by_both(bad: float) -> None:
    rows = np.ones((5, 7), np.float32)
    assert all_finite({"dense": rows}) and first_not_finite({"dense": rows}) is None
    rows[3, 2] = bad
    assert not all_finite({"dense": rows}) and first_not_finite({"dense": rows}) == 3


def test_numbers_whose_squares_are_too_large_are_looked_at_row_by_row() -> None:
    rows = np.full((2, 3), 3e38, np.float32)
    assert not all_finite({"dense": rows}) and first_not_finite({"dense": rows}) is None


def test_what_is_no_matrix_of_float32_is_looked_at_row_by_row() -> None:
    assert not all_finite({"dense": np.ones((2, 3), np.float32), "multivector": [np.ones((1, 3), np.float32)] * 2})
    assert not all_finite({"dense": np.array([[None]])})
