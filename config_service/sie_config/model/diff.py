"""What differs between two documents: paths, each with what stood and what stands there; and as lines for people. Pure.

Owns the paths and the lines. What a spec is as written says ``model_spec.document``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from sie_config.model.structure import Path, spelled


class FieldChange(msgspec.Struct, frozen=True):
    """A value that changed; None where nothing is written, and the default counts."""

    path: str
    """``tasks.dense.dim``, ``sources[0].revision``."""
    before: Any
    after: Any


def fields(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[FieldChange]:
    """Every value that differs, in the order of the documents; None: there is no document, so that all of the other's.

    What stands on one side alone is one change, whatever is in it; so is a list that got longer or shorter.
    """
    return list(_maps((), before or {}, after or {}))


def plan_lines(model: str, changes: Iterable[FieldChange], action: str = "changed") -> list[str]:
    """The changes of one model as Terraform shows them: ``+`` comes, ``-`` goes, ``~`` becomes another.

    ``action``: ``added``, ``changed`` or ``deleted``.
    """
    lines = [f"{_SIGNS[action]} {model}"]
    for change in changes:
        before, after = _text(change.before), _text(change.after)
        if change.before is None:
            lines.append(f"    + {change.path}: {after}")
        elif change.after is None:
            lines.append(f"    - {change.path}: {before}")
        else:
            lines.append(f"    ~ {change.path}: {before} -> {after}")
    return lines


_SIGNS = {"added": "+", "changed": "~", "deleted": "-"}


def _maps(path: Path, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    for name in dict.fromkeys((*before, *after)):
        yield from _values((*path, name), before.get(name), after.get(name))


def _values(path: Path, before: Any, after: Any) -> Iterator[FieldChange]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _maps(path, before, after)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (was, becomes) in enumerate(zip(before, after, strict=True)):
            yield from _values((*path, number), was, becomes)
    elif before != after or type(before) is not type(after):
        yield FieldChange(spelled(path), before, after)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
