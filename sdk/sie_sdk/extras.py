"""How an extra of this package is installed, as errors say it.

Owns that line. Until sie-knative is on PyPI its extras come from a clone: the only lines to change then are here.
"""

from __future__ import annotations


def install(extra: str) -> str:
    """What whoever lacks ``extra`` runs."""
    return f"pip install '.[{extra}]' in a clone of sie-knative"
