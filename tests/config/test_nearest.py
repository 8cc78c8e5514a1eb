"""Names near to a mistyped one: found among many, in order, and none where none is near."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config.nearest import Nearest

MANY = {f"organisation-{number % 40}/some-model-name-{number}": f"id-{number}" for number in range(2000)}
NAMES = {"baai/bge-m3": "BAAI/bge-m3", "bge-m3": "BAAI/bge-m3", "bge-small-en-v1.5": "BAAI/bge-small-en-v1.5"}


@pytest.mark.parametrize("typed", ["bge_m3", "baai/bgem3", "bge-m", "BAAI-bge-m3".lower(), "bga-m3", "m3-bge"])
def test_a_slip_of_the_hand_is_near_what_was_meant_and_nothing_is_proposed_twice(typed: str) -> None:
    near = Nearest(NAMES).to(typed)
    assert near[0] == "BAAI/bge-m3" and len(set(near)) == len(near)


@pytest.mark.parametrize("typed", ["", "x", "gpt-4o", "/", "y" * 10_000])
def test_what_is_like_nothing_is_near_nothing(typed: str) -> None:
    assert Nearest(NAMES).to(typed) == []
    assert Nearest({}).to(typed) == []


def test_the_one_that_was_meant_is_found_among_thousands_of_its_like() -> None:
    assert Nearest(MANY).to("organisation-17/some-modle-name-1777")[0] == "id-1777"


@given(st.sampled_from(sorted(MANY)), st.integers(0, 20), st.sampled_from(["", "x", "-", "ü"]))
def test_with_one_letter_changed_the_nearest_is_as_near_as_the_nearest_of_all(name: str, at: int, letter: str) -> None:
    some = {known: MANY[known] for known in list(MANY)[:200]} | {name: MANY[name]}
    typed = name[:at] + letter + name[at + 1 :]
    (found, *_) = Nearest(some).to(typed)
    best = difflib.get_close_matches(typed, some, n=1, cutoff=0.5)

    def likeness(known: str) -> float:
        return difflib.SequenceMatcher(None, known, typed).ratio()

    assert likeness(next(known for known in some if some[known] == found)) >= likeness(best[0]) - 0.02
