"""What rerank requests have in common: documents as strings or objects, and scores as relevance between 0 and 1.

Owns which text of an object is read, and what becomes of each kind of score. Not here: any dialect's request or answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Item, ScoreRequest

Document: TypeAlias = str | dict[str, Any]
Relevance: TypeAlias = Callable[[float], float]


def texts_of(documents: Sequence[Document], fields: Sequence[str] | None = None) -> list[str]:
    """What is read of each document: a string, or an object's ``fields`` in their order, a line each.

    Without ``fields`` it is the object's ``text``.

    Raises:
        InvalidInputError: an object has none of them, or one that is not a string; names it.
    """
    return [
        each if isinstance(each, str) else text_of(each, fields or ("text",), f"documents[{place}]")
        for place, each in enumerate(documents)
    ]


def text_of(document: dict[str, Any], fields: Sequence[str], name: str) -> str:
    """What is read of one object; ``name``: what errors call it."""
    lines = []
    for field in fields:
        value = document.get(field)
        if isinstance(value, str | int | float):
            lines.append(str(value))
        elif value is not None:
            raise InvalidInputError(
                f"{name}.{field} is no text.", field=f"{name}.{field}", hint="Send a string, or choose rank_fields."
            )
    if not lines:
        raise InvalidInputError(
            f"{name} has no {' or '.join(fields)}.",
            field=name,
            hint='Send a string, {"text": "..."}, or name the fields to read in rank_fields.',
        )
    return "\n".join(lines)


def request(query: str, texts: Sequence[str], spec: ModelSpec, options: dict[str, Any]) -> ScoreRequest:
    """The score request: for the score before any activation, so that none is lost where many are close to 1."""
    if spec.tasks.score is not None and spec.tasks.score.kind != "maxsim":
        options = options | {"activation": "none"}
    return ScoreRequest(query=Item(text=query), items=[Item(text=text) for text in texts], options=options or None)


def relevance(spec: ModelSpec) -> Relevance:
    """How a model's score becomes a relevance: a logit's sigmoid, MaxSim's mean over the query's tokens.

    The mean is known where queries are filled up to a fixed length (ColBERT); elsewhere MaxSim's sum stays as it is.
    """
    if spec.tasks.score is not None and spec.tasks.score.kind != "maxsim":
        return sigmoid
    length = spec.tasks.multivector.query_length if spec.tasks.multivector is not None else 0
    return lambda score: score / max(1, length)


def sigmoid(score: float) -> float:
    """In float64, and without overflow."""
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
