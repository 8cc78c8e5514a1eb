"""What one pod does, learned from heartbeats: bounds, what idle pods may teach, and that it finds the truth."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.demand.rate import ENOUGH_S, ENOUGH_WORKS, LONG_S, Rate, Rates, Window, between, learned
from sie_broker.records import Lane, WorkerState

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
UNKNOWN = 20.0

rates = st.floats(min_value=0.01, max_value=10_000)
seconds = st.floats(min_value=0.01, max_value=100)


@st.composite
def window(draw: st.DrawFn) -> Window:
    busy_s = draw(seconds)
    return Window(draw(st.integers(0, 100_000)), busy_s, busy_s * draw(st.floats(0, 1)))


known = st.builds(Rate, rates, st.integers(0, 100))


@given(known, st.lists(window(), max_size=30))
def test_the_rate_stays_within_what_was_seen(before: Rate, windows: list[Window]) -> None:
    rate = before
    for each in windows:
        rate = learned(rate, each)
    seen = [each.works / each.busy_s for each in windows if each.works]
    assert min([before.works_per_s, *seen]) * 0.999 <= rate.works_per_s
    assert rate.works_per_s <= max([before.works_per_s, *seen]) * 1.001


@given(known, window())
def test_a_worker_with_free_hands_teaches_no_lower_rate(before: Rate, one: Window) -> None:
    if not one.saturated:
        assert learned(before, one).works_per_s >= before.works_per_s * 0.999


@given(rates, window())
def test_the_first_saturated_window_replaces_what_was_set(unknown: float, one: Window) -> None:
    if one.saturated and one.works:
        assert learned(Rate(unknown), one).works_per_s == pytest.approx(one.works / one.busy_s)


@given(known, window())
def test_each_window_brings_the_rate_nearer_to_what_it_saw_or_leaves_it(before: Rate, one: Window) -> None:
    after = learned(before, one)
    if after != before:
        seen = one.works / one.busy_s
        assert abs(after.works_per_s - seen) <= abs(before.works_per_s - seen) * 1.001


@given(st.floats(min_value=0.3, max_value=5000), st.lists(st.floats(0.05, 3), min_size=10, max_size=200), rates)
def test_a_saturated_worker_s_true_rate_is_found_whenever_it_beats(
    true: float, beats: list[float], unknown: float
) -> None:
    learning, at = Rates(unknown), 0.0
    for pause in itertools.islice(itertools.cycle(beats), 10_000):
        learning.heard(beat(at, works=math.floor(at * true), full=1.0))
        at += pause
        if at > 8 * max(LONG_S if true < 1 else 0, ENOUGH_S, ENOUGH_WORKS / true):
            break
    assert learning.of(LANE).works_per_s == pytest.approx(true, rel=0.12)


def test_a_window_is_done_with_enough_works_and_enough_seconds_or_after_a_long_time() -> None:
    assert not Window(ENOUGH_WORKS, ENOUGH_S / 2).done
    assert not Window(ENOUGH_WORKS - 1, ENOUGH_S).done
    assert Window(ENOUGH_WORKS, ENOUGH_S).done
    assert Window(0, LONG_S).done


def test_between_two_heartbeats_a_worker_did_what_the_second_has_more_and_nothing_if_it_did_not_only_work() -> None:
    before, after = beat(10, 100, 1.0), beat(12, 130, 0.0)
    assert between(before, after) == Window(30, 2.0, 0.0), "less than before is none"
    assert between(after, before) == Window(0, 0.0, 10.0)
    elsewhere = Lane(pool="team-a", bundle="minilm", profile="cpu")
    for changed in ({"lane": elsewhere}, {"state": "draining"}, {"models": ("m", "n")}):
        assert between(before, msgspec.structs.replace(after, **changed)) is None


def beat(busy_s: float, works: int, full: float, worker: str = "w", models: tuple[str, ...] = ("m",)) -> WorkerState:
    return WorkerState(worker, LANE, "ready", 0.0, models, completed=works, busy_s=busy_s, full_s=busy_s * full)


def test_the_time_a_model_takes_to_load_is_no_work() -> None:
    learning = Rates(UNKNOWN)
    learning.heard(beat(0, 0, 1.0, models=()))
    learning.heard(beat(30, 0, 1.0, models=()))
    learning.heard(beat(31, 5, 1.0))
    for second in range(1, 20):
        learning.heard(beat(31 + second, 5 + 100 * second, 1.0))
    assert learning.of(LANE).works_per_s == pytest.approx(100)


def test_a_worker_that_finishes_nothing_teaches_nothing() -> None:
    learning = Rates(UNKNOWN)
    for second in range(300):
        learning.heard(beat(second, 0, 1.0))
    assert learning.of(LANE) == Rate(UNKNOWN)


def test_light_load_teaches_no_capacity_but_more_than_was_thought_does() -> None:
    learning = Rates(UNKNOWN)
    for second in range(60):
        learning.heard(beat(second, 10 * second, 0.0))
    assert learning.of(LANE) == Rate(UNKNOWN)
    for second in range(60):
        learning.heard(beat(60 + second, 600 + 50 * second, 0.0))
    assert learning.of(LANE).works_per_s == pytest.approx(50, rel=0.05)


def test_all_workers_of_a_lane_teach_the_rate_of_one() -> None:
    learning = Rates(UNKNOWN)
    for second in range(30):
        learning.heard(beat(second, 40 * second, 1.0, "w1"))
        learning.heard(beat(second, 40 * second, 1.0, "w2"))
    assert learning.of(LANE).works_per_s == pytest.approx(40)


def test_what_was_measured_before_is_a_beginning_and_no_more() -> None:
    learning = Rates(UNKNOWN)
    learning.recall(LANE, 200.0)
    assert learning.of(LANE).works_per_s == 200.0
    for second in range(120):
        learning.heard(beat(second, 40 * second, 1.0))
    learning.recall(LANE, 200.0)
    assert learning.of(LANE).works_per_s == pytest.approx(40, rel=0.05)


def test_a_pool_begins_with_the_rate_of_the_service_its_workers_come_from() -> None:
    learning = Rates(UNKNOWN)
    learning.recall(LANE, 200.0)
    assert learning.of(Lane(pool="team-a", bundle="minilm", profile="cpu")).works_per_s == 200.0
    assert learning.of(Lane(pool="team-a", bundle="other", profile="cpu")).works_per_s == UNKNOWN


def test_a_worker_that_left_and_another_that_came_are_not_taken_for_one() -> None:
    learning = Rates(UNKNOWN)
    learning.heard(beat(100, 9000, 1.0))
    learning.forget("w")
    learning.heard(beat(0, 0, 1.0))
    for second in range(1, 30):
        learning.heard(beat(second, 40 * second, 1.0))
    assert learning.of(LANE).works_per_s == pytest.approx(40)
