"""One public door: what `sie_sdk` exports is what it says, in order, and costs little to import."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import sie_sdk
from sie_sdk.refusals import BY_CODE
from tests.sdk.scripted_server import ScriptedServer, json_answer, scores, vectors


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
    slow = {"httpx", "numpy", "asyncio", "concurrent", "email", "ssl", "http", "logging"}
    assert not loaded & (slow | {"click", "rich", "torch", "nats", "starlette", "yaml"})


RANKS = """
import sys
from sie_sdk import SIEClient
with SIEClient(sys.argv[1]) as client:
    client.list_models()
    client.score("m", "q", ["a"])
assert "numpy" not in sys.modules
client = SIEClient(sys.argv[1])
client.encode("m", "a").dense.shape
assert "numpy" in sys.modules
"""


def test_who_needs_no_vectors_never_imports_numpy(server: ScriptedServer) -> None:
    server.script = [json_answer({"models": []}), scores(1.0), vectors()]
    subprocess.run([sys.executable, "-c", RANKS, server.url], check=True, timeout=60)
