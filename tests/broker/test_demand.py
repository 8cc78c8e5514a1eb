"""The rule of wanted pods: bounds, up at once, down after quiet, frozen when blind."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sie_broker.demand.pods import Demand, Policy, open_sessions, pods_for, wanted

POLICY = Policy(max_scale=4, quiet_s=60, objective_s=5)
RATE = 2.0  # one pod clears ten

looks = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(min_value=0, max_value=100)),
        st.booleans(),
        st.floats(min_value=0.01, max_value=100),
    ),
    min_size=1,
    max_size=50,
)


def after(*seen: tuple[int | None, bool, float]) -> list[Demand]:
    """The demands after each (backlog, busy, seconds since the last look)."""
    demand, now, demands = Demand(), 1000.0, []
    for backlog, busy, elapsed in seen:
        now += elapsed
        demand = wanted(demand, backlog, busy, RATE, now, POLICY)
        demands.append(demand)
    return demands


@given(looks)
def test_demand_stays_between_zero_and_max_scale(seen: list[tuple[int | None, bool, float]]) -> None:
    assert all(0 <= demand.pods <= POLICY.max_scale for demand in after(*seen))


@given(looks)
def test_what_is_needed_now_is_always_granted_at_once(seen: list[tuple[int | None, bool, float]]) -> None:
    for (backlog, busy, _), demand in zip(seen, after(*seen), strict=True):
        if backlog is not None:
            assert demand.pods >= min(POLICY.max_scale, pods_for(backlog, RATE, POLICY))
            assert demand.pods >= 1 or not (backlog or busy)


@given(looks)
def test_demand_falls_only_after_a_quiet_period_and_never_below_what_it_saw_meanwhile(
    seen: list[tuple[int | None, bool, float]],
) -> None:
    demands, now, needs = after(*seen), 0.0, list[tuple[float, int]]()
    for before, now_seen, demand in zip([Demand(), *demands], seen, demands, strict=False):
        backlog, busy, elapsed = now_seen
        now += elapsed
        needs.append((now, before.pods if backlog is None else max(pods_for(backlog, RATE, POLICY), int(busy))))
        if demand.pods < before.pods:
            recent = max(need for at, need in needs if now - at < POLICY.quiet_s)
            assert demand.pods >= min(recent, POLICY.max_scale)


@given(looks)
def test_a_queue_that_cannot_be_read_changes_nothing(seen: list[tuple[int | None, bool, float]]) -> None:
    demands = after(*seen)
    for (backlog, _, _), before, demand in zip(seen, [Demand(), *demands], demands, strict=False):
        if backlog is None:
            assert demand.pods == before.pods


@given(st.integers(min_value=1, max_value=100))
def test_sessions_ask_the_autoscaler_for_exactly_these_pods(pods: int) -> None:
    average = open_sessions(pods)
    assert math.ceil(average / 2) == pods
    assert math.ceil((average + 1) / 2) == pods  # a session counted twice at renewal


backlogs = st.integers(min_value=0, max_value=1_000_000)
pod_rates = st.floats(min_value=0.001, max_value=10_000)


@given(backlogs, pod_rates)
def test_the_pods_for_a_backlog_clear_it_in_time_and_one_less_would_not(backlog: int, rate: float) -> None:
    pods = pods_for(backlog, rate, POLICY)
    one = max(1.0, rate * POLICY.objective_s)  # no pod does less than one work
    assert pods * one >= backlog * 0.999
    assert pods == 0 or (pods - 1) * one < backlog * 1.001
    assert (pods > 0) == (backlog > 0)


@given(backlogs, backlogs, pod_rates, pod_rates)
def test_more_work_or_slower_pods_never_need_fewer(one: int, other: int, fast: float, slow: float) -> None:
    few, many = sorted((one, other))
    slow, fast = sorted((slow, fast))
    assert pods_for(few, fast, POLICY) <= pods_for(many, fast, POLICY) <= pods_for(many, slow, POLICY)


def test_no_pods_need_no_sessions() -> None:
    assert open_sessions(0) == 0


def test_a_lane_follows_a_burst_up_at_once_and_down_step_by_step() -> None:
    pods = [
        demand.pods for demand in after((1, False, 0), (35, False, 1), (0, False, 1), (15, False, 30), (0, False, 31))
    ]
    assert pods == [1, 4, 4, 4, 2]


def test_a_lane_goes_to_zero_a_quiet_period_after_the_last_activity() -> None:
    pods = [demand.pods for demand in after((0, True, 0), (0, True, 59), (0, False, 59), (0, False, 1.5))]
    assert pods == [1, 1, 1, 0]
