"""Modules of torch that run later than torch imports them, or never: a third of its import is for tracing models.

Owns which they are and how they wait, and what torch's libraries are told before they are loaded. Not here: when the
engine is imported (``bundle.Warming``).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LAZY = ("torch.export", "torch._meta_registrations")
"""Tracing, and what operators give on the meta device; no forward pass of an engine model asks for either."""
KEPT_PRODUCTS = "128"
"""So many sizes of products oneDNN keeps its code for, which is a megabyte each; by itself it keeps 1,024.

84 requests of a padded model, of all sizes: 683 to 888 MB with 64, 696 to 988 with 128, 685 to 1,165 with 256."""


class LazyLoader(Loader):
    """Gives an import the module empty, and runs it when somebody asks it for something, or for all (`whole`)."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._module: ModuleType | None = None
        self._running = self._ran = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Let it wait."""
        self._module = module
        module.__dict__["__getattr__"] = self._asked
        _waiting.append(self)

    def run(self) -> None:
        """Run the module unless somebody has. Who asks it for something meanwhile waits; what it imports does not.

        Raises:
            Exception: what the module raises, to everybody who asks until it does not.
        """
        with self._lock:
            if self._module is None or self._running or self._ran:
                return
            self._running = True
            try:
                self._loader.exec_module(self._module)
                if self._module.__dict__["__getattr__"] == self._asked:  # else it has one of its own now
                    del self._module.__dict__["__getattr__"]
                self._ran = True
            finally:
                self._running = False

    def _asked(self, name: str) -> Any:
        # Who looks for the file of something asks all modules there are for names like these.
        if name == "__all__" or not name.startswith("__"):
            self.run()
        if self._ran:
            return getattr(self._module, name)
        raise AttributeError(f"this module has no attribute {name!r} before it has run")


class LazyFinder(MetaPathFinder):
    """Finds the modules of `LAZY`, for who imports them first."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """As Python's own finder, with a loader that waits."""
        if name not in LAZY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


_waiting: list[LazyLoader] = []


def begin() -> None:
    """From now on `LAZY` waits; what is imported already is as it is."""
    for setting in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(setting, KEPT_PRODUCTS)
    if not any(isinstance(finder, LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, LazyFinder())


def whole() -> None:
    """Run what waits: before code that is not of this project uses torch, and may trace or take the meta device."""
    importlib.import_module("torch")  # and not while a thread imports it
    for waiting in _waiting:
        waiting.run()
