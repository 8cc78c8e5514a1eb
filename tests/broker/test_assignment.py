"""Who works for which pool: never more than there are, minimum first, few moves, idle ones, and back at the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sie_broker.pools.assignment import Claim, Member, assign, grants
from sie_broker.pools.pool import DEFAULT, Pool, service_of
from sie_broker.records import Lane

NOW = 1000.0
SERVICES = [Lane(DEFAULT, "default", "cpu"), Lane(DEFAULT, "default", "l4"), Lane(DEFAULT, "other", "cpu")]
NAMES = ["a", "b", "c"]


def pool(name: str = "a", *, most: int = 2, minimum: int = 0, created: float = 900.0, ttl: float = 600.0) -> Pool:
    return Pool(name, {"cpu": most}, created, created, ttl, minimum=minimum)


def member(name: str, works_for: str = DEFAULT, *, idle: bool = True) -> Member:
    return Member(name, SERVICES[0], works_for, idle)


def lane(name: str) -> Lane:
    return Lane(name, "default", "cpu")


@st.composite
def leases(draw: st.DrawFn) -> list[Pool]:
    return [
        Pool(
            name,
            {profile: draw(st.integers(1, 4)) for profile in draw(st.sets(st.sampled_from(["cpu", "l4"]), min_size=1))},
            created_at=draw(st.floats(0, NOW)),
            last_renewed=draw(st.floats(0, NOW)),
            ttl_s=draw(st.floats(1, 3600)),
            bundle=draw(st.sampled_from(["default", "other"])),
            minimum=draw(st.integers(0, 4)),
            deleted=draw(st.booleans()),
        )
        for name in draw(st.sets(st.sampled_from(NAMES)))
    ]


LANES = st.builds(Lane, st.sampled_from([DEFAULT, *NAMES]), st.just("default"), st.sampled_from(["cpu", "l4"]))
working = st.sets(LANES)
members = st.lists(
    st.builds(
        Member,
        st.integers(0, 99).map(str),
        st.sampled_from(SERVICES),
        st.sampled_from([DEFAULT, *NAMES, "gone"]),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)
pods = st.dictionaries(LANES, st.integers(0, 4))


def served(assigned: dict[str, str], workers: list[Member]) -> Counter[Lane]:
    """Workers of each lane of a pool."""
    services = {worker.name: worker.service for worker in workers}
    return Counter(Lane(to, services[name].bundle, services[name].profile) for name, to in assigned.items())


@given(leases(), pods, working, members)
def test_only_workers_that_exist_are_assigned_and_only_to_pools_that_may_have_them(
    pools: list[Pool], wanted: dict[Lane, int], busy: set[Lane], workers: list[Member]
) -> None:
    assigned = assign(pools, wanted, busy, workers, NOW)
    assert assigned.keys() <= {worker.name for worker in workers}
    for each, number in served(assigned, workers).items():
        (owner,) = [pool for pool in pools if each in pool.lanes()]
        assert number <= owner.most(each.profile)
        minimum = owner.minimum if owner.living(NOW) else 0
        assert number <= max(minimum, wanted.get(each, 0)), "nobody is given what it does not want"


@given(leases(), pods, working, members)
def test_nobody_has_more_than_its_minimum_while_another_lacks_its_own(
    pools: list[Pool], wanted: dict[Lane, int], busy: set[Lane], workers: list[Member]
) -> None:
    got = served(assign(pools, wanted, busy, workers, NOW), workers)
    for service in SERVICES:
        least = {
            each: min(pool.minimum, pool.most(each.profile)) if pool.living(NOW) else 0
            for pool in pools
            for each in pool.lanes()
            if service_of(each) == service
        }
        if any(got[each] < number for each, number in least.items()):
            assert all(got[each] <= number for each, number in least.items())
            assert sum(got[each] for each in least) == sum(worker.service == service for worker in workers)


@given(leases(), pods, working, members)
def test_what_was_decided_stands_until_something_changes(
    pools: list[Pool], wanted: dict[Lane, int], busy: set[Lane], workers: list[Member]
) -> None:
    assigned = assign(pools, wanted, busy, workers, NOW)
    moved = [worker._replace(pool=assigned.get(worker.name, DEFAULT)) for worker in workers]
    assert assign(pools, wanted, busy, moved, NOW) == assigned


@given(leases(), pods, working, members)
def test_no_worker_moves_that_need_not(
    pools: list[Pool], wanted: dict[Lane, int], busy: set[Lane], workers: list[Member]
) -> None:
    assigned = assign(pools, wanted, busy, workers, NOW)
    got = served(assigned, workers)
    for service in SERVICES:
        here = [worker for worker in workers if worker.service == service]
        had = Counter(worker.pool for worker in here)
        moves = sum(assigned.get(worker.name, DEFAULT) != worker.pool for worker in here)
        numbers = {name: got[Lane(name, service.bundle, service.profile)] for name in NAMES}
        numbers[DEFAULT] = len(here) - sum(numbers.values())
        assert moves == sum(max(0, number - had[name]) for name, number in numbers.items())


@given(leases(), members)
def test_everybody_goes_home_when_the_leases_have_ended_and_nothing_waits(
    pools: list[Pool], workers: list[Member]
) -> None:
    assert assign(pools, {}, (), workers, NOW + 4000) == {}


def test_an_idle_worker_is_taken_before_a_busy_one() -> None:
    workers = [member("busy", idle=False), member("idle"), member("also busy", idle=False)]
    assert assign([pool(minimum=1)], {}, (), workers, NOW) == {"idle": "a"}


def test_the_one_that_goes_home_is_idle() -> None:
    workers = [member("busy", "a", idle=False), member("idle", "a")]
    assert assign([pool()], {lane("a"): 1}, (), workers, NOW) == {"busy": "a"}


def test_a_pool_that_has_too_many_gives_to_one_that_lacks_before_home_does() -> None:
    workers = [member("1", "a"), member("2", "a"), member("3")]
    assert assign([pool("a"), pool("b")], {lane("a"): 1, lane("b"): 1}, (), workers, NOW) == {"1": "a", "2": "b"}


def test_work_that_waits_in_a_pool_whose_lease_has_ended_is_still_served() -> None:
    ended = pool(minimum=2, ttl=50)
    workers = [member("1", "a"), member("2", "a")]
    assert assign([ended], {lane("a"): 1}, (), workers, NOW) == {"1": "a"}
    assert assign([ended], {lane("a"): 0}, (), workers, NOW) == {}


def test_the_default_pool_keeps_one_worker_for_its_work_beside_what_pools_want_beyond_their_minimum() -> None:
    wanted = {lane("a"): 4, SERVICES[0]: 3}
    for workers, expected in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (7, 4), (9, 4)):
        here = [member(str(number)) for number in range(workers)]
        assert len(assign([pool(most=4, minimum=1)], wanted, wanted, here, NOW)) == expected


def test_the_oldest_pools_minimum_comes_first_and_what_is_left_is_shared() -> None:
    wanted = [Claim("a", 1, 4), Claim("b", 1, 2)]
    assert grants(wanted, 0, 1, (), {}) == {"a": 1, "b": 0}
    assert grants(wanted, 0, 2, (), {}) == {"a": 1, "b": 1}
    assert grants(wanted, 0, 3, (), {}) == {"a": 2, "b": 1}
    assert grants(wanted, 0, 9, (), {}) == {"a": 4, "b": 2}


def test_the_only_worker_goes_to_a_pool_that_has_work_while_home_has_none_and_stays_until_home_has_some() -> None:
    wanted = {SERVICES[0]: 1, lane("a"): 1}  # home's is kept warm
    assert assign([pool()], wanted, {lane("a")}, [member("1")], NOW) == {"1": "a"}
    assert assign([pool()], wanted, (), [member("1", "a")], NOW) == {"1": "a"}
    assert assign([pool()], wanted, {SERVICES[0]}, [member("1", "a")], NOW) == {}
    assert assign([pool()], wanted, (), [member("1")], NOW) == {}, "nobody moves for nothing"
    assert assign([pool()], wanted, {SERVICES[0], lane("a")}, [member("1", "a")], NOW) == {}, "home's work comes first"
