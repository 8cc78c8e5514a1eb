"""Sight: what a token sees of its own text. A few words of data that every attention kernel reads."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Slopes(NamedTuple):
    """A bias that grows with the distance of two tokens, by a factor per head (ALiBi, 2108.12409), to both sides.

    Made where it is added: for a long text all of it would take more memory than the model.
    """

    by_head: Tensor
    """[heads] float32, negative, times log2(e)."""

    def between(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[heads, ..., q, k] for tokens at these places of their text, [..., q] and [..., k]."""
        distance = (queries[..., :, None] - keys[..., None, :]).abs()
        return self.by_head.view(-1, *[1] * distance.dim()) * distance


class Sight(NamedTuple):
    """Without any of these, a token sees its whole text."""

    causal: bool = False
    """Only itself and what stands before it."""
    window: int | None = None
    """Only so many tokens to each side."""
    bias: Tensor | Slopes | None = None
    """[heads, longest, longest], or what makes parts of it: added to the scores, times log2(e)."""

    def seen_by(self, rows: range, seen: int) -> range:
        """The keys that any of the queries ``rows`` sees, of the first ``seen`` that can be seen at all."""
        low, high = 0, seen
        if self.window is not None:
            low, high = max(0, rows.start - self.window), min(seen, rows.stop + self.window)
        return range(low, min(high, rows.stop) if self.causal else high)
