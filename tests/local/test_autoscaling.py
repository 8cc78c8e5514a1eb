"""The autoscaler's rule, with the clock passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_local.autoscaling import Concurrency, Policy, desired

POLICY = Policy(target=2, max_scale=4, window_s=2, grace_s=1)


@given(st.integers(0, 4), st.floats(0, 50), st.floats(0, 50))
def test_it_stays_within_bounds_and_falls_by_one_at_most(processes: int, average: float, idle_s: float) -> None:
    wanted = desired(processes, average, idle_s, POLICY)
    assert max(0, processes - 1) <= wanted <= POLICY.max_scale


@pytest.mark.parametrize("pods", [1, 2, 3, 4])
def test_one_session_less_than_twice_the_pods_asks_for_exactly_these_pods(pods: int) -> None:
    assert desired(0, 2 * pods - 1, 0.0, POLICY) == pods
    assert desired(pods, 2 * pods, 0.0, POLICY) == pods  # one session counted twice at renewal


def test_the_first_request_starts_a_process_at_once() -> None:
    assert desired(0, 0.001, 0.0, POLICY) == 1


def test_the_last_process_stays_through_window_and_grace() -> None:
    assert desired(1, 0.0, 2.9, POLICY) == 1
    assert desired(1, 0.0, 3.0, POLICY) == 0
    assert desired(0, 0.0, 0.5, POLICY) == 0


def test_concurrency_is_averaged_over_the_window() -> None:
    seen = Concurrency()
    seen.change(+1, 10.0)
    assert seen.average(10.0, 2) == 1
    seen.change(+1, 11.0)
    assert seen.average(12.0, 2) == 1.5
    assert seen.average(13.0, 2) == 2
    seen.change(-1, 13.0)
    seen.change(-1, 13.0)
    assert seen.average(14.0, 2) == 1
    assert seen.idle_s(14.0) == 1
    assert seen.average(15.0, 2) == 0
    assert seen.average(99.0, 2) == 0


def test_nothing_seen_is_nothing_open() -> None:
    assert Concurrency().average(1.0, 2) == 0
    assert Concurrency().idle_s(1.0) > 1e9
