"""Entailment: zero-shot classification with a model of natural language inference (Yin et al. 2019, 1909.00161).

Owns what is made of a label, which of the model's labels means what, and the scores. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sie_bundle.engine.outputs import Floats
from sie_bundle.operations.classification import softmax
from sie_sdk.errors import ModelLoadFailedError

PLACE = "{}"
"""Where a template has its label."""


class Sides(NamedTuple):
    """The numbers of the two labels that count; a third one, neutral, never does."""

    entailment: int
    contradiction: int


def sides(labels: Sequence[str], model: str) -> Sides:
    """Find both by name, in any case: ``entailment``, and ``contradiction``, ``not_entailment`` or the only other one.

    Raises:
        ModelLoadFailedError: the labels do not say.
    """
    names = [label.lower() for label in labels]
    yes = [number for number, name in enumerate(names) if name.startswith("entail")]
    no = [number for number, name in enumerate(names) if name.startswith("contradict")]
    no = no or [number for number, name in enumerate(names) if name.startswith("not")]
    if len(names) == 2 and len(yes) == 1:
        no = [1 - yes[0]]
    if len(yes) != 1 or len(no) != 1:
        raise ModelLoadFailedError(
            f"The labels of {model} do not say which is entailment and which contradiction: {', '.join(labels)}.",
            hint="Name them in order under tasks.extract.labels of its spec.",
        )
    return Sides(yes[0], no[0])


def hypothesis(template: str, label: str) -> str:
    """The template with the label in its place. No format string: braces of either mean nothing else."""
    return template.replace(PLACE, label, 1)


def probabilities(logits: Floats, found: Sides, *, multi_label: bool) -> Floats:
    """Scores in 0 to 1, [texts, labels], of logits [texts, labels, 2 or 3].

    One of several: softmax of the labels' entailment, so that a text's scores add up to 1. ``multi_label``, and always
    for a single label: softmax of entailment against contradiction, each label by itself.
    """
    if multi_label or logits.shape[1] == 1:
        return softmax(logits[..., [found.contradiction, found.entailment]])[..., 1]
    return softmax(np.ascontiguousarray(logits[..., found.entailment]))
