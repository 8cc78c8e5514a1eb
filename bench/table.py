"""Prints a table the way the README shows it: Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table."""
    print(f"\n### {title}\n")
    print("| " + " | ".join(headings) + " |")
    print("| " + " | ".join(["---"] * len(headings)) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
