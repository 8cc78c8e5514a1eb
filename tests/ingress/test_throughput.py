"""The rate of the cluster from what workers say they answered: over ten seconds, whoever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_ingress.throughput import WINDOW_S, Throughput


def beats(throughput: Throughput, worker: str, *completed: int, start: float = 0.0) -> None:
    for second, count in enumerate(completed):
        throughput.heard(worker, start + second, count)


def test_the_rate_is_what_was_answered_between_the_first_and_the_last_that_was_heard() -> None:
    throughput = Throughput()
    beats(throughput, "a", 0, 10, 30)
    assert throughput.per_second(["a"]) == 15


def test_one_heartbeat_is_no_rate_and_a_worker_that_came_with_a_past_adds_none_of_it() -> None:
    throughput = Throughput()
    beats(throughput, "a", 1_000_000)
    assert throughput.per_second(["a"]) == 0
    throughput.heard("a", 1.0, 1_000_005)
    assert throughput.per_second(["a"]) == 5


def test_what_is_older_than_the_window_does_not_count() -> None:
    throughput = Throughput()
    beats(throughput, "a", *(100 * second for second in range(10)), *[900] * 11)
    assert throughput.per_second(["a"]) == 0


def test_workers_add_up_and_those_that_are_gone_are_forgotten() -> None:
    throughput = Throughput()
    beats(throughput, "a", 0, 3)
    beats(throughput, "b", 0, 4)
    assert throughput.per_second(["a", "b", "never heard of"]) == 7
    assert throughput.per_second(["b"]) == 4
    assert throughput.per_second(["a", "b"]) == 4


def test_a_worker_that_starts_again_under_its_name_counts_from_there() -> None:
    throughput = Throughput()
    beats(throughput, "a", 500, 510, 2, 4)
    assert throughput.per_second(["a"]) == 2


def test_a_heartbeat_that_is_told_twice_or_late_changes_nothing() -> None:
    throughput = Throughput()
    beats(throughput, "a", 0, 10)
    throughput.heard("a", 1.0, 10)
    throughput.heard("a", 0.5, 3)
    assert throughput.per_second(["a"]) == 10


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60))
def test_the_rate_is_never_below_none_nor_above_the_busiest_second(steps: list[int]) -> None:
    throughput, total = Throughput(), 0
    for second, step in enumerate(steps):
        total += step
        throughput.heard("a", float(second), total)
    last = steps[1:][-int(WINDOW_S) :]
    assert throughput.per_second(["a"]) == pytest.approx(sum(last) / len(last))
