"""One public door: what `sie_sdk` exports is what it says, in order, and costs little to import."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import sie_sdk
from sie_sdk.errors import BY_CODE


def test_all_is_sorted_and_complete() -> None:
    assert sorted(sie_sdk.__all__) == sie_sdk.__all__
    public = {
        name
        for name, value in vars(sie_sdk).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert public | {"__version__"} == set(sie_sdk.__all__)


def test_every_error_is_exported() -> None:
    assert {cls.__name__ for cls in BY_CODE.values()} <= set(sie_sdk.__all__)


def test_importing_the_sdk_imports_nothing_that_is_slow_or_optional() -> None:
    script = "import sie_sdk, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"httpx", "click", "rich", "asyncio", "torch", "nats", "starlette", "yaml"}
