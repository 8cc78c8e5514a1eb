"""Settings come from the environment, and a wrong one names its variable."""

from __future__ import annotations

from typing import Annotated, Literal

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


class Kinds(msgspec.Struct, frozen=True):
    room_bytes: settings.Bytes = 1
    least: Annotated[int, msgspec.Meta(ge=1)] = 1
    held_s: settings.Seconds = 1.0
    every_s: settings.Positive = 1.0
    most: Annotated[int, msgspec.Meta(ge=0)] = 1
    share: float = 0.5
    verbose: bool = False


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SIE_ROOM_BYTES", "8GB", "a whole number of bytes, such as 8589934592, is meant"),
        ("SIE_ROOM_BYTES", "0", "a whole number of bytes"),
        ("SIE_HELD_S", "5m", "a number of seconds, 0 to 86400, is meant"),
        ("SIE_EVERY_S", "0", "a number of seconds, more than 0 to 86400, is meant"),
        ("SIE_MOST", "-1", "a whole number >= 0 is meant"),
        ("SIE_LEAST", "few", "a whole number is meant"),
        ("SIE_MOST", "many", "a whole number is meant"),
        ("SIE_SHARE", "half", "a number is meant"),
        ("SIE_VERBOSE", "maybe", "true or false is meant"),
    ],
)
def test_a_wrong_value_is_told_in_words_what_is_meant(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings.read(Kinds, {name: value})
    assert caught.value.message.startswith(f"{name}={value!r} is wrong: {told}")


def test_a_value_that_is_none_of_the_known_ones_is_told_them() -> None:
    with pytest.raises(ConfigurationError, match=r"SIE_PRECISION='float8' is wrong: one of auto, float32 is meant\."):
        settings.read(Example, {"SIE_POOL": "p", "SIE_PRECISION": "float8"})
