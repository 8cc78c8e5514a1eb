"""A proposal as the YAML document a person reads: every fact with its source behind it, doubts on top. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from sie_config.propose.proposal import Proposal

COLUMN = 56
"""Where comments begin, as far as lines are shorter."""


def document(proposal: Proposal, asked: str) -> str:
    """The YAML; ``asked``: what the proposal was made of, as people read it."""
    lines = [f"# Proposed from {_line(asked)}.{_languages(proposal)}"]
    if proposal.doubts:
        lines.append("# In doubt, look before you rely on it:")
        lines += [f"#   {_line(f'{doubt.field}: {doubt.text}')}" for doubt in proposal.doubts]
    lines += _mapping(proposal.document, "", proposal.notes, 0)
    return "\n".join(lines) + "\n"


def scalar(value: object) -> str:
    """One value on one line, as YAML reads it back: what has no form of its own on a line is escaped."""
    plain = all(text.isprintable() for text in _texts(value))
    style = None if plain else '"'
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, width=float("inf"), allow_unicode=plain, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for own in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(own)


def _mapping(values: Mapping[str, Any], path: str, notes: Mapping[str, str], depth: int) -> Iterator[str]:
    for name, value in values.items():
        own, indent = f"{path}{name}", "  " * depth
        note = notes.get(own, "")
        if isinstance(value, Mapping) and value:
            yield _noted(f"{indent}{scalar(name)}:", note)
            yield from _mapping(value, f"{own}.", notes, depth + 1)
        elif name == "sources":
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {scalar(source)}" for source in value)
        else:
            yield _noted(f"{indent}{scalar(name)}: {scalar(value)}", note)


def _noted(line: str, note: str) -> str:
    return f"{line:<{COLUMN}}  # {_line(note)}" if note else line


def _languages(proposal: Proposal) -> str:
    return f" Languages: {_line(proposal.languages)}." if proposal.languages else ""


def _line(text: str) -> str:
    """A comment ends with its line, whatever a file's field holds."""
    return " ".join("".join(own if own.isprintable() else " " for own in text).split())
