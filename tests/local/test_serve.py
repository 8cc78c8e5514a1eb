"""``sie serve`` and ``sie up`` with a setting or an option that makes no sense: they end with a line that names it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sdk.cli.running import sie


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


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize("folder", ["/nope", "./nope", "../nope/"])
def test_a_folder_of_models_that_is_not_there_is_not_taken_for_a_model(command: str, folder: str) -> None:
    done = sie(command, "--models", folder)
    assert (done.exit_code, f"there is no folder {folder}" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize("port", ["-1", "65536", "99999999999"])
def test_what_is_no_port_is_refused_as_an_option(command: str, port: str) -> None:
    done = sie(command, "--port", port)
    assert (done.exit_code, "'--port'" in done.stderr) == (2, True)
