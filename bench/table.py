"""A table the way the README shows it: Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One table, under its title."""
    cells = [headings, ["---"] * len(headings), *rows]
    return "\n".join([f"\n### {title}\n", *("| " + " | ".join(row) + " |" for row in cells)])


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table."""
    print(markdown(title, headings, rows))
