"""Templates: what is one, and how it is filled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config.model import template


def test_places_are_filled_in_one_pass() -> None:
    assert template.filled("{instruction}: {text}", text="{instruction}", instruction="find") == "find: {instruction}"
    assert template.filled('{"a": {text}} {} {0}', text="b") == '{"a": b} {} {0}'


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("{text}", ""),
        ("{instruction} {text} {}", ""),
        ("query: ", "has no place {text}"),
        ("{txt}", "has a place {txt}; it may have {text} and {instruction}"),
        ("{text} {query}", "has a place {query}; it may have {text} and {instruction}"),
    ],
)
def test_a_template_has_a_place_for_the_text_and_no_unknown_ones(written: str, fault: str) -> None:
    assert template.fault(written) == fault


@given(st.text(), st.text())
def test_any_text_is_filled_in_as_it_is(text: str, instruction: str) -> None:
    assert template.filled("<{text}|{instruction}>", text=text, instruction=instruction) == f"<{text}|{instruction}>"
