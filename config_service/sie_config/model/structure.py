"""Whether a document (plain data from YAML or JSON) is what a record's type says, with every fault told at once. Pure.

Owns the walk over a type and the words for types and values. It is stricter than msgspec where JSON is: numbers are
finite, patterns match the whole text, and text is Unicode. What fields have to do with each other is ``validation``'s.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

Path = tuple[str | int, ...]
"""Where something stands in a document: names of fields and places in lists."""
LONGEST = 80
"""Characters of a value that a finding shows."""


class Finding(msgspec.Struct, frozen=True):
    """Something about one place of a document: what is wrong with it, or what is doubtful."""

    path: str
    """``tasks.dense.dim``, ``sources[1].revision``; empty: the document as a whole."""
    message: str
    value: Any = None
    """What stands there, cut where it is long; None where nothing does."""
    allowed: str = ""
    """What may stand there."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def finding(path: Path, message: str, value: Any = None, allowed: str = "") -> Finding:
    """A finding about the place ``path``."""
    return Finding(spelled(path), message, brief(value), allowed)


def faults(document: Any, kind: Any) -> Iterator[tuple[Path, Finding]]:
    """Everything in which the document is not of the type ``kind``, each with its place, in the order of the fields.

    Where there is none, ``msgspec.convert(document, kind)`` succeeds. What is annotated with ``Meta(extra={"fields":
    S})`` is held against the struct S; a ``description`` is what findings say instead of the type.
    """
    return _walk(_type(kind), document, ())


def spelled(path: Path) -> str:
    """A path as text; a name that would be mistaken for two stands in brackets: ``profiles["v1.5"].options``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[\w/-]{1,64}", step):
            text += f".{step}" if text else step
        else:
            text += f"[{msgspec.json.encode(_shortened(step).encode(errors='replace').decode()).decode()}]"
    return text


def brief(value: Any) -> Any:
    """A value as a finding shows it: short, and always JSON."""
    match value:
        case None | bool():
            return value
        case int():
            return value if abs(value) < 1 << 63 else f"a number of {value.bit_length()} bits"
        case float() if math.isfinite(value):
            return value
        case str():
            return _shortened(value).encode(errors="replace").decode()
        case list() | tuple() if value and all(isinstance(each, str | int | float | bool) for each in value):
            return _shortened(", ".join(str(each) for each in value[:LONGEST]).encode(errors="replace").decode())
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return "a mapping"
    return _shortened(str(value))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, as the end of a sentence; without one, all that there are."""
    names = list(known)
    close = difflib.get_close_matches(name[:LONGEST], names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def allowed(kind: inspect.Type) -> str:
    """What a type allows, in words: ``a whole number of at least 1``."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=told):
            return str((told or {}).get("description") or allowed(inner))
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}" if len(values) > 1 else str(values[0])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high):
            return "a whole number" + _range(low, high)
        case inspect.FloatType(ge=low, le=high):
            return "a number" + _range(low, high)
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            return "a text" + _length(low, high) + (f" that matches {pattern}" if pattern else "")
        case inspect.ListType(min_length=low) | inspect.VarTupleType(min_length=low):
            return "a list" + (f" of at least {low}" if low else "")
        case inspect.UnionType(types=types):
            names = dict.fromkeys(allowed(each) for each in types if not isinstance(each, inspect.NoneType))
            return " or ".join(names)
        case inspect.DictType() | inspect.StructType():
            return "a mapping"
    return "a value"


@lru_cache
def _type(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _walk(kind: inspect.Type, value: Any, path: Path) -> Iterator[tuple[Path, Finding]]:
    match kind:
        case inspect.Metadata(extra={"fields": struct}):
            yield from _walk(_type(struct), value, path)
        case inspect.Metadata(type=inner) if not isinstance(inner, inspect.StrType):
            yield from _walk(inner, value, path)
        case inspect.UnionType(types=types):
            yield from _union(types, value, path, kind)
        case inspect.StructType() if isinstance(value, dict):
            yield from _fields(kind, value, path)
        case inspect.ListType(item_type=item, min_length=low) | inspect.VarTupleType(item_type=item, min_length=low):
            if not isinstance(value, list | tuple) or len(value) < (low or 0):
                yield _wrong(kind, value, path)
            else:
                for number, each in enumerate(value):
                    yield from _walk(item, each, (*path, number))
        case inspect.DictType(key_type=keys, value_type=values) if isinstance(value, dict):
            for name, each in value.items():
                if next(_walk(keys, name, ()), None) is not None:
                    at = (*path, _name(name))
                    yield at, finding(at, f"the name is not {allowed(keys)}", name, allowed(keys))
                else:
                    yield from _walk(values, each, (*path, name))
        case _ if not _is(kind, value):
            yield _wrong(kind, value, path)


def _fields(kind: Any, value: dict[Any, Any], path: Path) -> Iterator[tuple[Path, Finding]]:
    names = [field.encode_name for field in kind.fields]
    tags = [kind.tag_field] if kind.tag_field else []
    for field in kind.fields:
        at = (*path, field.encode_name)
        if field.encode_name in value:
            yield from _walk(field.type, value[field.encode_name], at)
        elif field.required:
            yield at, finding(at, f"missing; it is {allowed(field.type)}", None, allowed(field.type))
    for name in value:
        if name not in names and name not in tags:
            at, known = (*path, _name(name)), [*tags, *names]
            hint = _TRUTHS if isinstance(name, bool) else nearest(at[-1], known)
            yield at, finding(at, f"unknown field; {hint}", value[name], ", ".join(known))


def _union(types: Sequence[inspect.Type], value: Any, path: Path, kind: inspect.Type) -> Iterator[tuple[Path, Finding]]:
    """A value that may be of several types: a mapping is held against the struct that its tag names."""
    structs = [each for each in types if isinstance(each, inspect.StructType)]
    if not isinstance(value, dict) or not structs:
        if not any(_is(each, value) for each in types):
            others = [each for each in types if not isinstance(each, inspect.NoneType)]
            yield from _walk(others[0], value, path) if len(others) == 1 else [_wrong(kind, value, path)]
        return
    by_tag = {each.tag: each for each in structs}
    if (field := structs[0].tag_field) is None:
        yield from _fields(structs[0], value, path)
    elif (tag := value.get(field)) in by_tag if isinstance(tag := value.get(field), str) else False:
        yield from _fields(by_tag[tag], value, path)
    else:
        at, choices = (*path, field), f"one of {', '.join(map(str, by_tag))}"
        told = f"missing; it is {choices}" if field not in value else f"{_quoted(tag)} is not {choices}"
        yield at, finding(at, told, tag, choices)


def _is(kind: inspect.Type, value: Any) -> bool:
    """Whether a value without parts is of the type."""
    match kind:
        case inspect.Metadata(type=inner):
            return _is(inner, value)
        case inspect.UnionType(types=types):
            return any(_is(each, value) for each in types)
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.LiteralType(values=values):
            return isinstance(value, str) and value in values
        case inspect.IntType(ge=low, le=high):
            whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
            return whole and _within(value, low, high)
        case inspect.FloatType(ge=low, le=high):
            number = _is(_WHOLE, value) or (isinstance(value, float) and math.isfinite(value))
            return number and _within(value, low, high)
        case inspect.StrType(min_length=low, max_length=high, pattern=pattern):
            return (
                isinstance(value, str)
                and _within(len(value), low, high)
                and (pattern is None or re.fullmatch(pattern, value) is not None)
                and value.encode(errors="replace").decode() == value
            )
    return False


_WHOLE = inspect.IntType()


def _name(key: Any) -> str:
    """What stands where a name does, which in YAML may be anything."""
    return key if isinstance(key, str) else str(brief(key))


def _wrong(kind: inspect.Type, value: Any, path: Path) -> tuple[Path, Finding]:
    wanted, hint = allowed(kind), ""
    bare = kind.type if isinstance(kind, inspect.Metadata) else kind
    text = isinstance(bare, inspect.StrType | inspect.LiteralType)
    if text and isinstance(value, bool):
        hint = f" ({_TRUTHS})"
    elif text and value is not None and not isinstance(value, str | list | dict):
        hint = " (put it in quotes)"
    elif isinstance(bare, inspect.LiteralType) and isinstance(value, str):
        close = difflib.get_close_matches(value.lower()[:LONGEST], [str(each) for each in bare.values], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
    told = "one of those known" if hint.startswith(";") and len(wanted) > LONGEST else wanted
    return path, finding(path, f"{_quoted(value)} is not {told}{hint}", value, wanted)


_TRUTHS = "YAML reads yes, no, on and off as truth values: put it in quotes"


def _quoted(value: Any) -> str:
    shown = brief(value)
    if isinstance(value, str):
        return repr(shown)
    return "null" if value is None else str(shown).lower() if isinstance(value, bool) else str(shown)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _within(number: float, low: float | None, high: float | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}" if isinstance(low, float) else f" from {low} to {high}"
    return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""


def _length(low: int | None, high: int | None) -> str:
    if not high:
        return f" of at least {low} character{'s' * (low > 1)}" if low else ""
    return f" of {low} to {high} characters" if low else f" of at most {high} characters"
