"""The attention mask as data: what a token sees of its own text. Every attention kernel reads it."""

# No annotations from the future: ``compiled``.
from typing import NamedTuple

from torch import Tensor


class AttentionMask(NamedTuple):
    """Without any of these, a token sees its whole text."""

    causal: bool = False
    """Only itself and what stands before it."""
    window: int | None = None
    """Only so many tokens to each side."""
    bias: Tensor | None = None
    """[heads, n, n], added to the scores; n: the longest text, rounded up to sixteens."""
    slopes: Tensor | None = None
    """[heads] float32, negative: a bias that grows with the distance of two tokens, to both sides
    (ALiBi, 2108.12409). Made where it is added: for a long text all of it would take more memory than the model."""

    @property
    def whole(self) -> bool:
        """Whether nothing but the direction limits it."""
        return self.window is None and self.unbiased

    @property
    def unbiased(self) -> bool:
        """Whether nothing is added to the scores."""
        return self.bias is None and self.slopes is None


def sloped(slopes: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """[heads, ..., q, k]: the bias by slopes [heads] of tokens at these places of their text, [..., q] and [..., k]."""
    distance = (queries.unsqueeze(-1) - keys.unsqueeze(-2)).abs()
    return slopes.view([-1] + [1] * distance.dim()) * distance
