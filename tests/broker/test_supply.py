"""When a Service without a worker has failed, in which words, and how many workers a lane may count on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.demand.supply import HOPELESS_S, SETTLED_S, Answer, Granted, Supply, failure, granted
from sie_broker.records import Lane

LANE = Lane(pool="default", bundle="minilm", profile="l4")
OTHER = Lane(pool="default", bundle="minilm", profile="cpu")
HELD = Answer()
REFUSED = Answer("HTTP 504 activator request timeout")
NOBODY = Answer("HTTP 404", unknown=True)


@pytest.mark.parametrize(
    ("waited_s", "answer", "fault", "said"),
    [
        (899.9, HELD, "", ""),
        (900.0, HELD, "", "started within 900 s; its Service has no pod that is ready"),
        (900.0, REFUSED, "", "started within 900 s; its Service last answered: HTTP 504 activator request timeout."),
        (HOPELESS_S - 0.1, NOBODY, "no CUDA", ""),
        (HOPELESS_S, NOBODY, "", "started within 60 s; there is no such Service (HTTP 404)."),
        (HOPELESS_S, HELD, "no CUDA.", "started within 60 s; the last one to try said: no CUDA."),
    ],
)
def test_a_service_has_failed_after_its_budget_and_sooner_where_the_reason_is_known(
    waited_s: float, answer: Answer, fault: str, said: str
) -> None:
    told = failure(LANE, waited_s, 900.0, answer, fault)
    assert bool(told) == bool(said)
    assert said in told
    assert not told or told.startswith("No worker of minilm on l4 has")


def test_time_counts_from_the_first_look_that_missed_a_worker_and_ends_with_the_first_that_is_there() -> None:
    supply = Supply(30.0)
    for now, live, failed in ((0.0, 0, False), (29.0, 0, False), (31.0, 0, True), (32.0, 1, False), (60.0, 0, False)):
        supply.look({LANE: 1}, {LANE: live}, now)
        assert bool(supply.failure(LANE, HELD, now)) == failed, now
    supply.look({LANE: 1}, {}, 91.0)
    assert supply.failure(LANE, HELD, 91.0)


def test_a_service_that_nobody_asks_anything_of_has_not_failed() -> None:
    supply = Supply(30.0)
    supply.look({LANE: 1, OTHER: 1}, {}, 0.0)
    supply.look({LANE: 0}, {}, 40.0)
    assert supply.missing == {}
    supply.look({LANE: 1}, {}, 41.0)
    assert not supply.failure(LANE, HELD, 41.0)


def test_while_nobody_can_be_heard_nobody_is_missing() -> None:
    supply = Supply(30.0)
    supply.look({LANE: 1}, {}, 0.0)
    supply.forget()
    supply.look({LANE: 1}, {}, 40.0)
    assert not supply.failure(LANE, HELD, 40.0)


def test_what_a_worker_said_that_could_not_start_counts_until_one_can() -> None:
    supply = Supply(900.0)
    supply.look({LANE: 1}, {}, 0.0)
    supply.said(LANE, "no CUDA")
    assert "no CUDA" in supply.failure(LANE, HELD, HOPELESS_S)
    supply.look({LANE: 1}, {LANE: 1}, 70.0)
    supply.look({LANE: 1}, {}, 71.0)
    assert not supply.failure(LANE, HELD, 71.0 + HOPELESS_S)


def test_a_service_is_short_of_workers_when_it_has_had_some_and_too_few_for_a_minute() -> None:
    supply = Supply(30.0)
    for now, live in ((0.0, 1), (SETTLED_S - 1, 2)):
        supply.look({LANE: 3, OTHER: 1}, {LANE: live, OTHER: 1}, now)
        assert supply.short(now) == set()
    assert supply.short(SETTLED_S) == {LANE}
    supply.look({LANE: 3}, {LANE: 3}, 100.0)
    supply.look({LANE: 3}, {}, 200.0)
    assert supply.short(300.0) == set()


def test_the_next_holder_goes_on_with_the_time_of_the_one_before() -> None:
    supply = Supply(30.0)
    supply.recall(LANE, LANE, 3, 100.0)
    supply.look({LANE: 1}, {}, 131.0)
    assert supply.failure(LANE, HELD, 131.0)
    assert supply.granted(LANE, 5, 0, 131.0) == 3


@pytest.mark.parametrize("times", [(100.0, 200.0), (200.0, 100.0)])
def test_of_what_lanes_say_of_one_service_the_longest_wait_counts(times: tuple[float, float]) -> None:
    supply = Supply(30.0)
    for lane, since in zip((LANE, msgspec.structs.replace(LANE, pool="team-a")), times, strict=True):
        supply.recall(lane, LANE, 0, since)
    assert supply.missing == {LANE: 100.0}


def test_what_a_lane_has_all_of_again_it_may_count_on_from_then_on() -> None:
    again = granted(Granted(3, 0.0), 5, 3, SETTLED_S - 1)
    assert granted(again, 5, 2, SETTLED_S + 1).pods == 3


def test_a_lane_may_count_on_the_most_it_had_until_it_has_had_fewer_than_it_wants_for_long() -> None:
    before, told = Granted(), []
    for now, wanted, live in (
        (0.0, 5, 0),
        (9.0, 5, 3),
        (99.0, 5, 0),  # a restart: nothing is known anew
        (100.0, 5, 1),
        (100.0 + SETTLED_S / 2, 5, 2),
        (100.0 + SETTLED_S, 5, 2),
        (200.0, 1, 1),
        (300.0, 1, 1),  # not more wanted
    ):
        before = granted(before, wanted, live, now)
        told.append(before.pods)
    assert told == [0, 3, 3, 3, 3, 2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 100)), max_size=30))
def test_never_less_is_counted_on_than_is_there(looks: list[tuple[int, int, float]]) -> None:
    before, now, most = Granted(), 0.0, 0
    for wanted, live, passed in looks:
        now, most = now + passed, max(most, live)
        before = granted(before, wanted, live, now)
        assert live <= before.pods <= most
