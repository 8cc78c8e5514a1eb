"""``sie serve`` with a setting that makes no sense: it ends with one line that names it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("SIE_DEVICE", "cuda:99", "torch finds"),
        ("SIE_STREAMS", "-1", ">= 0"),
        ("SIE_PINNED_MODELS", "nope", "There is no model 'nope'"),
        ("SIE_DEFAULT_MODELS", "nope", "There is no model 'nope'"),
        ("SIE_LOG_LEVEL", "foo", "one of DEBUG"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(variable: str, value: str, told: str) -> None:
    command = [sys.executable, "-m", "sie_sdk.cli", "serve", "--port", "0"]
    ended = subprocess.run(command, env=os.environ | {variable: value}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    (error,) = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert variable in error and told in error
