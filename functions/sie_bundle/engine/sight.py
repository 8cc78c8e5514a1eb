"""Sight: what a token sees of its own text. A few words of data that every attention kernel reads."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Sight(NamedTuple):
    """Without any of these, a token sees its whole text."""

    causal: bool = False
    """Only itself and what stands before it."""
    window: int | None = None
    """Only so many tokens to each side."""
    bias: Tensor | None = None
    """[heads, longest, longest] added to the scores, times log2(e)."""

    def seen_by(self, rows: range, seen: int) -> range:
        """The keys that any of the queries ``rows`` sees, of the first ``seen`` that can be seen at all."""
        low, high = 0, seen
        if self.window is not None:
            low, high = max(0, rows.start - self.window), min(seen, rows.stop + self.window)
        return range(low, min(high, rows.stop) if self.causal else high)
