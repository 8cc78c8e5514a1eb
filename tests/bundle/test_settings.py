"""A bundle does not start with a setting that makes no sense, and says which it is and what is meant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sie_bundle.bundle import check_device
from sie_bundle.settings import Settings
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError

WRONG = {
    "SIE_DEVICE": ["foo", "", "cuda:x", "cpu:1"],
    "SIE_STREAMS": ["-1", "100000"],
    "SIE_THREADS": ["-1", "100000"],
    "SIE_MODEL_BYTES": ["-1", "0"],
    "SIE_HOST_BYTES": ["-1"],
    "SIE_BATCH_TOKENS": ["-1"],
    "SIE_BATCH_S": ["-1", "0", "nan", "inf"],
    "SIE_MAX_IN_HAND": ["0"],
    "SIE_MAX_BODY_BYTES": ["0"],
    "SIE_MAX_REPLY_BYTES": ["-1"],
    "SIE_DRAIN_S": ["-1", "nan", "inf"],
}


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_setting_that_makes_no_sense_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{variable}='{value}' is wrong: .*(>|<=|regex|0 to 86400)"
    ) as caught:
        settings.read(Settings, {variable: value})
    assert caught.value.field == variable


# In a process of its own, since the second is known from when it begins.
FOLDERS = """
from sie_bundle.engine.native import KEPT
from sie_bundle.settings import Settings
from sie_sdk import settings
print(settings.read(Settings).cache_dir, KEPT)
"""


@pytest.mark.parametrize(
    ("told", "cache"),
    [
        ({"SIE_CACHE_DIR": "/kept"}, "/kept"),
        ({"SIE_CACHE_DIR": "/kept", "XDG_CACHE_HOME": "/other"}, "/kept"),
        ({"XDG_CACHE_HOME": "/other"}, "/other/sie-knative"),
        ({}, "/home/of/somebody/.cache/sie-knative"),
    ],
)
def test_compiled_code_is_kept_where_weights_are(told: dict[str, str], cache: str) -> None:
    program = [sys.executable, "-c", FOLDERS]
    environ = {"HOME": "/home/of/somebody", **told}
    done = subprocess.run(program, env=environ, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [cache, f"{cache}/kernels"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_device_is_named_as_torch_does(device: str) -> None:
    assert settings.read(Settings, {"SIE_DEVICE": device}).device == device


def test_a_gpu_that_is_not_there_is_refused() -> None:
    check_device("cpu")
    with pytest.raises(ConfigurationError, match=r"SIE_DEVICE=cuda:99 is wrong: torch finds \d+ CUDA devices"):
        check_device("cuda:99")
