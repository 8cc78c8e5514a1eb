"""Jina's dialect, as far as it goes beyond OpenAI's embeddings and Cohere's rerank, whose routes it shares. Pure.

Owns its words: ``task``, ``embedding_type``, ``normalized``, inputs that are objects, the ``detail`` of its errors.
The routes are ``openai``'s and ``cohere``'s.
"""

from __future__ import annotations

from typing import Any

from sie_ingress.dialects.dialect import one_of
from sie_sdk.errors import InvalidInputError

TASKS = {
    "retrieval.query": True,
    "retrieval.passage": False,
    "text-matching": False,
    "classification": False,
    "clustering": False,
    "separation": False,
    "nl2code.query": True,
    "nl2code.passage": False,
    "code.query": True,
    "code.passage": False,
}
"""Whether a task embeds queries."""


def is_query(task: str) -> bool:
    """Whether the texts are queries."""
    return one_of(task, TASKS, "task")


def text_of(given: dict[str, Any], field: str) -> str:
    """The text of an input object, ``{"text": "..."}``."""
    if not isinstance(text := given.get("text"), str):
        held = next((name for name in ("image", "url", "bytes", "video", "pdf") if name in given), None)
        raise InvalidInputError(
            f"{field} has {f'an {held}' if held else 'no text'}, and this model reads text.",
            field=field,
            hint='Send a string, or {"text": "..."}.',
        )
    return text
