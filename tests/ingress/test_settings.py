"""An ingress does not start with a setting that makes no sense, and says which it is and what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from sie_config.registry import Registry
from sie_ingress.dialects.speaking import absent_models
from sie_ingress.settings import Settings
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError
from tests import tiny_model

WRONG = {
    "SIE_REQUEST_TIMEOUT_S": ["-1", "0", "nan", "inf"],
    "SIE_COLD_START_S": ["-1", "nan"],
    "SIE_MAX_ITEMS": ["0", "-1"],
    "SIE_MAX_BODY_BYTES": ["0"],
    "SIE_MAX_REPLY_BYTES": ["-1"],
    "SIE_MAX_TEXT_BYTES": ["0"],
}


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_setting_that_makes_no_sense_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{variable}='{value}' is wrong: .*(>|<=|0 to 86400)") as caught:
        settings.read(Settings, {variable: value})
    assert caught.value.field == variable


def test_of_models_that_a_setting_names_those_that_are_absent_are_told() -> None:
    registry = Registry([tiny_model.spec(Path("unread"), "org/here")])
    (told,) = absent_models(registry, ["org/here", "here", "nope"])
    assert "There is no model 'nope'" in told
