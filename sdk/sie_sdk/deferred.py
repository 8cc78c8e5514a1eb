"""A module that is imported when something of it is first used. For numpy, which takes longer than all else together.

Whoever lists models, ranks texts or renews a pool never needs it. Type checkers see the module itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Deferred:
    """Stands in for a module: ``np = Deferred("numpy")``. An attribute costs a microsecond; a hot loop imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
