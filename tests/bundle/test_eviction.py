"""Who goes when memory is needed: the policy's promises, on any models at any time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.residency.eviction import SETTLE_S, Held, most, order, victims

NOW = 1000.0


@st.composite
def models(draw: st.DrawFn) -> list[Held]:
    """Up to eight models, loaded and then used at some time until now."""
    made = []
    for number in range(draw(st.integers(0, 8))):
        loaded = draw(st.floats(0, NOW))
        used = draw(st.floats(loaded, NOW))
        made.append(Held(f"m{number}", draw(st.integers(1, 1000)), loaded, used, draw(st.booleans())))
    return made


def held(name: str, size: int, used: float, *, loaded: float = 0.0, pinned: bool = False) -> Held:
    return Held(name, size, loaded, used, pinned)


def names(some: list[Held]) -> list[str]:
    return [each.name for each in some]


@given(models(), st.booleans())
def test_all_but_the_pinned_may_go_once_each(some: list[Held], scarce: bool) -> None:
    assert sorted(names(order(some, NOW, scarce))) == sorted(each.name for each in some if not each.pinned)


@given(models(), st.booleans())
def test_the_one_used_last_goes_last(some: list[Held], scarce: bool) -> None:
    if going := order(some, NOW, scarce):
        newest = max(some, key=lambda each: each.used)
        assert newest.pinned or going[-1] is newest


@given(models(), st.booleans())
def test_one_loaded_a_moment_ago_is_not_the_first_while_another_than_the_one_used_last_may_go(
    some: list[Held], scarce: bool
) -> None:
    going = order(some, NOW, scarce)
    newest = max(some, key=lambda each: each.used, default=None)
    settled = [each for each in going if NOW - each.loaded >= SETTLE_S and each is not newest]
    assert going[: len(settled)] == sorted(settled, key=going.index), "all settled ones stand before the others"


@given(models())
def test_of_settled_models_the_least_recently_used_goes_first(some: list[Held]) -> None:
    settled = [each for each in order(some, NOW) if NOW - each.loaded >= SETTLE_S][:-1]
    assert [each.used for each in settled] == sorted(each.used for each in settled)


@given(models(), st.integers(0, 3000), st.booleans())
def test_enough_goes_and_no_one_more(some: list[Held], excess: int, scarce: bool) -> None:
    chosen = victims(some, excess, NOW, scarce)
    freed = sum(each.bytes for each in chosen)
    assert freed >= excess or len(chosen) == len(order(some, NOW, scarce))
    assert not chosen or freed - chosen[-1].bytes < excess


@given(models(), st.integers(0, 3000), st.integers(0, 3000))
def test_what_is_said_to_fit_fits_once_the_victims_are_gone(some: list[Held], need: int, limit: int) -> None:
    excess = sum(each.bytes for each in some) + need - limit
    left = sum(each.bytes for each in some) - sum(each.bytes for each in victims(some, excess, NOW))
    pinned = sum(each.bytes for each in some if each.pinned)
    if pinned <= limit:
        assert (need <= most(some, limit)) == (left + need <= limit)


def test_the_least_recently_used_goes_first_and_under_pressure_the_largest() -> None:
    some = [held("old", 10, 1), held("large", 90, 2), held("older", 20, 0.5), held("newest", 99, 3)]
    assert names(order(some, NOW)) == ["older", "old", "large", "newest"]
    assert names(order(some, NOW, scarce=True)) == ["large", "older", "old", "newest"]


def test_a_model_that_has_just_come_is_spared_for_one_that_is_used_more_recently_but_has_settled() -> None:
    some = [held("settled", 1, 999.6), held("fresh", 1, 999.5, loaded=999.5), held("newest", 1, 999.9)]
    assert names(order(some, NOW)) == ["settled", "fresh", "newest"]


def test_with_nothing_to_free_nobody_goes() -> None:
    assert victims([held("a", 1, 1)], 0, NOW) == []
    assert victims([held("a", 1, 1)], -5, NOW, scarce=True) == []
    assert victims([], 5, NOW) == []
