"""Settings come from the environment, and a wrong one names its variable."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from sie_sdk import settings
from sie_sdk.errors import ConfigurationError


class Example(msgspec.Struct, frozen=True):
    pool: str
    max_items: int = 4096
    verbose: bool = False
    precision: Literal["auto", "float32"] = "auto"


def test_unset_variables_keep_their_defaults() -> None:
    assert settings.read(Example, {"SIE_POOL": "p"}) == Example("p")


def test_values_are_read_as_the_fields_type() -> None:
    environ = {"SIE_POOL": "p", "SIE_MAX_ITEMS": "7", "SIE_VERBOSE": "true", "OTHER": "x"}
    assert settings.read(Example, environ) == Example("p", 7, True)


@pytest.mark.parametrize(
    ("environ", "variable"), [({}, "SIE_POOL"), ({"SIE_POOL": "p", "SIE_MAX_ITEMS": "many"}, "SIE_MAX_ITEMS")]
)
def test_a_missing_or_wrong_value_names_its_variable(environ: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigurationError, match=variable) as caught:
        settings.read(Example, environ)
    assert caught.value.field == variable


def test_a_value_that_is_none_of_the_known_ones_is_told_them() -> None:
    with pytest.raises(ConfigurationError, match=r"SIE_PRECISION='float8' is wrong: one of auto, float32 is meant\."):
        settings.read(Example, {"SIE_POOL": "p", "SIE_PRECISION": "float8"})
