"""Specs as they stood a short while ago: work in flight is computed by the one it was resolved with.

Owns what is remembered and for how long. What is served now is ``registry``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sie_broker.records import Lane
from sie_config.model.model_spec import ModelSpec

REMEMBERED_S = 600.0
MOST = 4096
"""How many are remembered; of more, the oldest go before their time. Each takes some 3 KB."""


class _Past(NamedTuple):
    spec: ModelSpec
    lanes: tuple[Lane, ...]
    until: float


class PastSpecs:
    """Specs by model (its id in lower case) and etag. ``clock``: seconds, steady."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, dict[str, _Past]] = {}
        self._ends: deque[tuple[float, str, str]] = deque()

    def add(self, model: str, etag: str, spec: ModelSpec, lanes: Iterable[Lane]) -> None:
        """A spec that was replaced or removed now, and where its work waits."""
        until = self._clock() + REMEMBERED_S
        self._kept.setdefault(model, {})[etag] = _Past(spec, tuple(lanes), until)
        self._ends.append((until, model, etag))
        self._forget()

    def find(self, model: str, etag: str) -> ModelSpec | None:
        """The spec with this etag, while it is remembered."""
        self._forget()
        past = self._kept.get(model, {}).get(etag)
        return None if past is None else past.spec

    def waits_in(self, model: str, lane: Lane) -> bool:
        """Whether work of an earlier spec of the model may wait in this lane."""
        self._forget()
        return any(lane in past.lanes for past in self._kept.get(model, {}).values())

    def _forget(self) -> None:
        now = self._clock()
        while self._ends and (self._ends[0][0] <= now or len(self._ends) > MOST):
            until, model, etag = self._ends.popleft()
            kept = self._kept.get(model, {})
            if etag in kept and kept[etag].until == until:  # else it was replaced once more since
                del kept[etag]
                if not kept:
                    del self._kept[model]
