"""What torch imports for tracing waits in a bundle, and is there for who asks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from sie_bundle import lazy_torch

WARMED = """
import sys
from sie_bundle.bundle import Warming
warming = Warming()
warming.join()
assert warming.failure is None
import torch
assert "torch._prims" not in sys.modules, "torch asks for what waits by itself now: nothing is gained"
"""


def runs(program: str) -> None:
    """In a process of its own, whose torch is as a bundle's."""
    done = subprocess.run([sys.executable, "-c", WARMED + textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_bundle_keeps_the_code_of_few_sizes_unless_somebody_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "to be put back")
    monkeypatch.delenv("LRU_CACHE_CAPACITY")
    lazy_torch.begin()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
    assert os.environ["LRU_CACHE_CAPACITY"] == lazy_torch.KEPT_PRODUCTS


def test_a_bundle_computes_its_vectors_without_what_is_for_tracing(tiny_folder: Path) -> None:
    runs(
        f"""
        from pathlib import Path
        from sie_bundle.models.checkpoint import Checkpoint
        from sie_bundle.models.model import load
        from tests import tiny_model
        folder = Path({str(tiny_folder)!r})
        model = load(Checkpoint(tiny_model.spec(folder, "plain"), folder))
        model.forward(model.tokenizer.rows(["hello"], 16), {{"dense": [0]}})
        assert "torch._prims" not in sys.modules and "torch.export.unflatten" not in sys.modules
        """
    )


def test_who_traces_or_asks_for_shapes_on_the_meta_device_has_all_of_torch() -> None:
    runs(
        """
        from sie_bundle import lazy_torch
        lazy_torch.whole()
        some = torch.empty(3, 4, device="meta")
        assert torch.cdist(some, some).shape == (3, 3)
        class Double(torch.nn.Module):
            def forward(self, x):
                return x * 2
        exported = torch.export.export(Double(), (torch.ones(2),))
        assert exported.module()(torch.ones(2)).tolist() == [2, 2]
        """
    )


def test_a_name_of_what_waits_is_found_by_an_import_a_star_and_an_attribute() -> None:
    runs(
        """
        from torch.export import Dim
        names = {}
        exec("from torch.export import *", names)
        assert torch.export.Dim is Dim is names["Dim"]
        try:
            torch.export.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise AssertionError("found")
        """
    )


def test_transformers_is_imported_into_all_of_torch() -> None:
    runs(
        """
        from sie_bundle.models.transformers_library import library
        library()
        assert "torch._prims" in sys.modules
        """
    )


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that waits, counts how often it ran, and cannot run while there is a file ``broken`` beside it."""
    (tmp_path / "waits.py").write_text(
        "import pathlib, sys\n"
        "sys.ran = getattr(sys, 'ran', 0) + 1\n"
        "if pathlib.Path(__file__).with_name('broken').exists():\n"
        "    raise OSError('no such library')\n"
        "import asks_back\n"
        "value = 7\n"
    )
    (tmp_path / "asks_back.py").write_text("import waits\nfound = hasattr(waits, 'value')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lazy_torch, "LAZY", ("waits",))
    monkeypatch.setattr(lazy_torch, "_waiting", [])
    monkeypatch.setattr(sys, "ran", 0, raising=False)
    monkeypatch.setattr(sys, "meta_path", [lazy_torch.LazyFinder(), *sys.meta_path])
    yield importlib.import_module("waits")
    for name in ("waits", "asks_back"):
        sys.modules.pop(name, None)


def ran() -> int:
    """So often the module ran."""
    return int(vars(sys)["ran"])


def test_a_module_that_waits_runs_once_however_many_threads_ask_and_what_it_imports_may_ask_back(
    module: ModuleType,
) -> None:
    assert ran() == 0 and module.__file__ is not None
    together = threading.Barrier(8, timeout=30)

    def ask(_: int) -> object:
        together.wait()
        return module.value

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [7] * 8
    assert ran() == 1
    assert importlib.import_module("asks_back").found is False


def test_who_looks_through_all_modules_for_names_that_python_gives_makes_none_run(module: ModuleType) -> None:
    assert not hasattr(module, "__wrapped__") and not hasattr(module, "__warningregistry__")
    assert ran() == 0


def test_a_module_that_cannot_run_says_why_each_time_and_runs_once_it_can(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    for ask in (lambda: module.value, lazy_torch.whole):
        with pytest.raises(OSError, match="no such library"):
            ask()
    (tmp_path / "broken").unlink()
    lazy_torch.whole()
    assert module.value == 7 and ran() == 3


def test_a_module_with_a_getattr_of_its_own_keeps_it(module: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("def __getattr__(name):\n    return name.upper()\n")
    assert (module.anything, module.more) == ("ANYTHING", "MORE")


def test_what_is_imported_before_stays_as_it_is_and_one_finder_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    meta = sys.modules.get("torch._meta_registrations")
    for _ in range(2):
        lazy_torch.begin()
    assert sum(isinstance(finder, lazy_torch.LazyFinder) for finder in sys.meta_path) == 1
    assert sys.modules.get("torch._meta_registrations") is meta
