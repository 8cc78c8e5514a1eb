"""What a weight source raises, and the reasons there are. Sources: ``hub`` and ``wheel``; order, cache: ``weights``."""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal["network", "corrupt", "memory", "unknown", "gated", "not_found"]
"""In the order in which another try is worth it: one source that may be back in a second makes the model worth it."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class SourceError(Exception):
    """A source could not give the weights; the text says why in a few words. Never leaves `weights.resolve`."""

    def __init__(self, text: str, reason: Reason = "unknown") -> None:
        super().__init__(text)
        self.reason = reason
