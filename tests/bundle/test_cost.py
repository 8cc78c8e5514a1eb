"""The fit of what a batch costs: it finds the machine's numbers, follows them, and never predicts nonsense."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.engine.cost import Fit, Reading, reading

START, PER_TOKEN, PER_SQUARE = 1e-3, 5e-5, 2e-8

lengths = st.lists(st.integers(1, 512), min_size=1, max_size=40)


def taken(rows: list[int], slower: float = 1.0) -> float:
    """What a machine of known cost takes."""
    return slower * (START + PER_TOKEN * sum(rows) + PER_SQUARE * sum(n * n for n in rows))


def fitted(seen: list[Reading]) -> Fit:
    fit = Fit()
    for each in seen:
        fit.observe(each)
    return fit


def expected(fit: Fit, rows: list[int]) -> float:
    return fit.expected(reading(rows, 0.0))


def readings(seed: int, count: int, noise: float = 0.0, slower: float = 1.0) -> list[Reading]:
    random = np.random.default_rng(seed)
    batches = [random.integers(1, 512, size=random.integers(1, 40)).tolist() for _ in range(count)]
    return [reading(rows, taken(rows, slower) * random.uniform(1 - noise, 1 + noise)) for rows in batches]


def test_a_reading_counts_tokens_and_squared_lengths() -> None:
    assert reading([3, 4], 0.5) == Reading(tokens=7, squares=25, seconds=0.5)


def test_exact_readings_give_the_machines_own_numbers() -> None:
    fit = fitted(readings(0, 20))
    assert np.allclose([fit.start, fit.per_token, fit.per_square], [START, PER_TOKEN, PER_SQUARE], rtol=1e-3)
    assert np.isclose(fit.quadratic, PER_SQUARE / PER_TOKEN, rtol=1e-3)


def test_noisy_readings_still_predict_within_a_fifth() -> None:
    fit = fitted(readings(1, 208, noise=0.1))
    for rows in ([8], [256] * 8, [512], [20] * 64):
        assert 0.8 < expected(fit, rows) / taken(rows) < 1.2


def test_a_machine_that_becomes_slower_is_followed() -> None:
    fit = fitted(readings(2, 100))
    for each in readings(3, 200, slower=3.0):
        fit.observe(each)
    assert 2.7 < expected(fit, [100] * 10) / taken([100] * 10) < 3.3


def test_before_any_reading_nothing_is_known_and_nothing_is_limited() -> None:
    fit = Fit()
    assert not fit.known and fit.quadratic == 0 and fit.tokens_within(0.1) == float("inf")


def test_a_reading_that_took_no_time_is_ignored() -> None:
    fit = fitted([Reading(10, 100, 0.0), Reading(0, 0, 1.0)])
    assert not fit.known


@given(st.lists(st.tuples(lengths, st.floats(1e-5, 100)), min_size=1, max_size=30), lengths)
def test_no_readings_make_a_prediction_negative(seen: list[tuple[list[int], float]], rows: list[int]) -> None:
    fit = fitted([reading(own, seconds) for own, seconds in seen])
    assert fit.known and fit.start >= 0 and fit.per_token > 0 and fit.per_square >= 0
    assert expected(fit, rows) > 0 and fit.tokens_within(1.0) >= 0


@given(lengths, lengths, st.integers(0, 1000))
def test_more_rows_never_cost_less(some: list[int], more: list[int], seed: int) -> None:
    fit = fitted(readings(seed, 5, noise=0.3))
    assert expected(fit, some + more) >= expected(fit, some)


@given(st.lists(st.tuples(lengths, st.floats(0.5, 2)), min_size=1, max_size=8))
def test_no_other_numbers_that_are_not_negative_fit_the_readings_better(seen: list[tuple[list[int], float]]) -> None:
    told = [reading(rows, slower * taken(rows)) for rows, slower in seen]
    weighted = np.array([[1.0, each.tokens, each.squares] for each in told])
    weighted /= np.array([[each.seconds] for each in told])
    aged = np.sqrt(0.98 ** np.arange(len(told))[::-1])

    def error(numbers: npt.ArrayLike) -> float:
        return float(np.square(aged * (weighted @ np.asarray(numbers) - 1)).sum())

    fit = fitted(told)
    found = error([fit.start, fit.per_token, fit.per_square])
    for columns in ([1], [0, 1], [1, 2], [0, 1, 2]):
        some = aged[:, None] * weighted[:, columns]
        if np.linalg.matrix_rank(some / np.linalg.norm(some, axis=0), tol=1e-3) == len(columns):
            other = np.zeros(3)
            other[columns] = np.linalg.lstsq(some, aged)[0]
            assert (other < 0).any() or found <= error(other) + 1e-6


def test_what_fits_into_a_time_is_what_takes_it() -> None:
    fit = fitted(readings(4, 50))
    tokens = fit.tokens_within(0.1)
    assert np.isclose(fit.start + fit.per_token * tokens, 0.1, rtol=1e-6)


@given(st.integers(0, 1000))
def test_readings_taken_in_together_weigh_as_they_would_one_by_one(seed: int) -> None:
    seen = readings(seed, 8 + 16, noise=0.2)
    normal, right = np.zeros((3, 3)), np.zeros(3)
    for each in seen:
        row = np.array([1.0, each.tokens, each.squares]) / each.seconds
        normal, right = 0.98 * normal + np.outer(row, row), 0.98 * right + row
    fit = fitted(seen)
    assert np.allclose(fit._normal, normal) and np.allclose(fit._right, right)


def test_a_batch_is_of_a_few_tokens_or_of_as_many_as_are_quick() -> None:
    fit = fitted(readings(5, 50))
    quick = fit.tokens_within(0.05)
    assert fit.ceiling(longest_s=1.0, few=quick / 2) == quick
    assert fit.ceiling(longest_s=1.0, few=2 * quick) == 2 * quick
    assert fit.ceiling(longest_s=0.02, few=2 * quick) == fit.tokens_within(0.02) < quick


def test_of_a_model_of_which_nothing_is_known_a_batch_is_of_a_few_tokens() -> None:
    assert Fit().ceiling(longest_s=0.2, few=512) == 512
    assert Fit().ceiling(longest_s=0.2, few=float("inf")) == float("inf")


class Taken(list[tuple[float, float, float]]):
    """Readings that another stream takes in as soon as they come."""

    def append(self, reading: tuple[float, float, float]) -> None:
        pass


def test_readings_that_another_stream_takes_in_meanwhile_are_not_missed() -> None:
    fit = fitted(readings(6, 5))
    before = fit.tokens_within(1.0)
    fit._new = Taken()
    fit.observe(Reading(10, 100, 0.1))
    assert fit.tokens_within(1.0) == pytest.approx(before)
