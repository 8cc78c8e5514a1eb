"""A spec in the making: each field with where it comes from, what is in doubt, and what keeps the model from running.

Owns the collecting. Nothing here knows a model; the finished thing is ``proposal``'s.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Doubt(msgspec.Struct, frozen=True):
    """Something the files do not say, or say twice: the field it is about, and what a person should look at."""

    field: str
    text: str


class Draft:
    """What was found so far."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.notes: dict[str, str] = {}
        self.doubts: list[Doubt] = []
        self.blocks: list[str] = []

    def put(self, field: str, value: Any, source: str = "") -> None:
        """Set a field, by its path with dots; ``source``: where that stands."""
        *way, last = field.split(".")
        inner = self.document
        for step in way:
            inner = inner.setdefault(step, {})
        inner[last] = value
        if source:
            self.notes[field] = source

    def doubt(self, field: str, text: str) -> None:
        """Something that a person should look at."""
        self.doubts.append(Doubt(field, text))

    def block(self, reason: str) -> None:
        """Something that nothing here computes yet, in words that end "waits for ..."."""
        if reason not in self.blocks:
            self.blocks.append(reason)
