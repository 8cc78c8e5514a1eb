"""Options: read with their types, refused by name with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from sie_bundle.operations.options import Options
from sie_sdk.errors import InvalidInputError


def options(**given: Any) -> Options:
    return Options(given, ("is_query", "dimensions", "threshold", "activation", "overflow_policy"), "params.options")


def refused(read: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        read()
    return caught.value


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    error = refused(lambda: options(pooling="cls"))
    assert error.field == "params.options.pooling"
    assert "is_query" in str(error.limit) and "pooling" in error.message


def test_values_come_back_with_their_defaults() -> None:
    some = options(is_query=True, dimensions=64, threshold=0.5)
    assert some.flag("is_query") is True and some.count("dimensions", 384, 384) == 64
    assert some.number("threshold", 0.0, 0, 1) == 0.5
    none = options(is_query=None)
    assert none.flag("is_query") is False and none.count("dimensions", 384, 384) == 384
    assert none.overflow() == "truncate_text"


def test_no_options_at_all_are_fine() -> None:
    assert Options(None, (), "options").given("anything") is None


@pytest.mark.parametrize("policy", ["default", "truncate_text", "error"])
def test_both_overflow_policies_and_the_default_are_known(policy: str) -> None:
    assert options(overflow_policy=policy).overflow() == ("error" if policy == "error" else "truncate_text")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"is_query": "yes"}, lambda o: o.flag("is_query")),
        ({"is_query": 1}, lambda o: o.flag("is_query")),
        ({"dimensions": 0}, lambda o: o.count("dimensions", 384, 384)),
        ({"dimensions": 385}, lambda o: o.count("dimensions", 384, 384)),
        ({"dimensions": True}, lambda o: o.count("dimensions", 384, 384)),
        ({"dimensions": 1.5}, lambda o: o.count("dimensions", 384, 384)),
        ({"threshold": 1.5}, lambda o: o.number("threshold", 0, 0, 1)),
        ({"threshold": float("nan")}, lambda o: o.number("threshold", 0, 0, 1)),
        ({"threshold": False}, lambda o: o.number("threshold", 0, 0, 1)),
        ({"activation": "relu"}, lambda o: o.choice("activation", "none", ("none", "sigmoid"))),
        ({"overflow_policy": ["error"]}, lambda o: o.overflow()),
    ],
)
def test_a_value_it_cannot_have_is_refused_and_named(given: dict[str, Any], read: Any) -> None:
    (name,) = given
    error = refused(lambda: read(options(**given)))
    assert error.field == f"params.options.{name}" and (error.limit is None) == (name == "is_query")
    assert error.hint and repr(given[name]) in error.message
