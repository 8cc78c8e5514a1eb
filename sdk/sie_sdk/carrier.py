"""What every group of the clients' methods rests on: a client that carries calls, blocking or awaited.

Owns the names by which methods reach it. The clients fill them in (``client``), the methods use them (``methods`` and
its siblings).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sie_sdk.effects import Call, Patience
from sie_sdk.types import Progress

if TYPE_CHECKING:
    # httpx takes longer to import than the rest of the SDK together; the first client made imports it.
    import httpx

Http = TypeVar("Http", bound="httpx.Client | httpx.AsyncClient")


class Carrier(ABC, Generic[Http]):
    """A client as its methods see it."""

    _timeout_s: float
    _pool: str | None

    @abstractmethod
    def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        """Run one call: its result, or that to await."""

    @abstractmethod
    def _stream(self, calls: Any, width: int, progress: Callable[[Progress], object] | None) -> Any:
        """Run many calls, ``width`` at a time; their results in order, as they come."""

    def _impatience(self) -> Patience:
        """How long a call tries that waits for no worker."""
        return Patience(False, self._timeout_s, self._timeout_s, bound="timeout_s")
