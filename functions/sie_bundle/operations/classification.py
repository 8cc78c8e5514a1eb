"""Classification: from the logits of whole texts to labels with scores, in numpy. What to ask for is ``extract``'s."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sie_bundle.engine.outputs import Floats
from sie_sdk.types import Classification


def softmax(logits: Floats) -> Floats:
    """Along the last axis, which is at least one long."""
    powers: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: Floats) -> Floats:
    """By the half argument's tanh, which does not overflow."""
    squashed: Floats = 0.5 * (1 + np.tanh(0.5 * logits))
    return squashed


def probabilities(logits: Floats, *, multi_label: bool) -> Floats:
    """[texts, labels] of scores in 0 to 1. ``multi_label``: each label by itself; a single label always is."""
    return sigmoid(logits) if multi_label or logits.shape[1] == 1 else softmax(logits)


def ranked(
    labels: Sequence[str], scores: Floats, *, threshold: float = 0.0, top_k: int | None = None
) -> list[Classification]:
    """One text's labels with their scores [labels], best first and equal ones in the labels' order.

    Args:
        threshold: labels below are left out.
        top_k: so many at most.
    """
    order = np.argsort(-scores, kind="stable")
    kept = order[scores[order] >= threshold][:top_k]
    return [Classification(labels[number], score) for number, score in zip(kept, scores[kept].tolist(), strict=True)]
