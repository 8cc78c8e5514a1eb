"""What comes to a write, or stands in a file, as YAML or JSON, read into plain data: maps with text for keys, lists,
text, numbers, truths.

Owns what is refused on the way, because two readers of it would not agree or because reading it costs more than its
bytes: keys twice, keys that are no text, aliases, depth, numbers that are none. What it means is ``model_spec``'s.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from sie_sdk import formats
from sie_sdk.errors import ConfigurationError, InvalidInputError, UnsupportedMediaTypeError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Of YAML, which takes its time: as many as all models of one write have."""
YAML: Final = "application/yaml"
_YAMLS: Final = (YAML, "text/yaml", "application/x-yaml", "text/x-yaml", "text/plain")
_JSONS: Final = (formats.JSON, "application/merge-patch+json")
_WRITTEN_OTHERWISE = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


class _Loader(yaml.CSafeLoader):
    """libyaml's, that leaves a date the text it is, and knows no merge key."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag not in _WRITTEN_OTHERWISE]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def read(body: bytes, content_type: str | None) -> list[Any]:
    """The documents of a body: one of JSON, any number of YAML; empty ones are left out.

    No ``content_type`` is YAML, of which JSON is a part.

    Raises:
        UnsupportedMediaTypeError: it is neither.
        InvalidInputError: it cannot be read, and where; or holds what is refused.
    """
    media = (content_type or YAML).partition(";")[0].strip().lower()
    if media in _JSONS:
        documents = [_from_json(body)]
    elif media in _YAMLS:
        documents = _from_yaml(body)
    else:
        raise UnsupportedMediaTypeError(
            f"The body is {media[:100]!r}, not YAML or JSON.",
            field="Content-Type",
            limit=", ".join((*_YAMLS, *_JSONS)),
            hint=f"Send Content-Type: {YAML}.",
        )
    for document in documents:
        _check(document)
    return [document for document in documents if document is not None]


def of_file(name: str, content: bytes) -> list[Any]:
    """The documents of a file of YAML, as `read` has them.

    Raises:
        ConfigurationError: what `read` refuses, with the file's name.
    """
    try:
        return read(content, YAML)
    except InvalidInputError as error:
        told = error.message.replace("The body", name, 1)
        raise ConfigurationError(told, field=name, hint=error.hint) from None


def mapping(documents: list[Any]) -> dict[str, Any]:
    """The one map that a body is to hold.

    Raises:
        InvalidInputError: there is none, there are several, or it is something else.
    """
    match documents:
        case [dict() as one]:
            return one
        case [] | [_]:
            raise _unreadable("it is not a map", hint="It looks like: id: org/model")
        case _:
            raise _unreadable(f"it holds {len(documents)} documents", hint="POST /v1/configs/apply takes several.")


def _from_json(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_number)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise _unreadable(str(error)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _unreadable(f"the key {twice[:64]!r} is there twice")
    return made


def _no_number(name: str) -> None:
    raise _unreadable(f"{name} is no number")


def _from_yaml(body: bytes) -> list[Any]:
    try:
        text = body.decode()
        _walk(text)
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        if "nesting depth" in (error.problem or ""):  # libyaml reads ahead, and since 0.2.6 gives up a thousand deep
            raise _too_deep() from None
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _unreadable(f"{error.problem or 'it is not YAML'}{where}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # no UTF-8; a key or number that is none
        raise _unreadable(str(error).partition("\n")[0]) from None


def _walk(text: str) -> None:
    """Look at every event before anything is built, for building an alias or a depth is what costs."""
    open_maps: list[_Map | None] = []
    for count, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
        if count > MAX_VALUES:
            raise InvalidInputError(
                f"The body has more than {MAX_VALUES} values.", field="body", limit=MAX_VALUES, hint="Write in parts."
            )
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _unreadable(f"there is an anchor or an alias{_place(event)}", hint="Write out what it stands for.")
        if isinstance(event, yaml.CollectionEndEvent):
            open_maps.pop()
        elif isinstance(event, yaml.NodeEvent):
            if open_maps and (inside := open_maps[-1]) is not None:
                inside.take(event)
            if isinstance(event, yaml.CollectionStartEvent):
                open_maps.append(_Map() if isinstance(event, yaml.MappingStartEvent) else None)
                if len(open_maps) > MAX_DEPTH:
                    raise _too_deep()


class _Map:
    """A map of which some nodes were seen: keys and values by turns."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._at_key = True

    def take(self, node: yaml.NodeEvent) -> None:
        if self._at_key:
            if not isinstance(node, yaml.ScalarEvent):
                raise _unreadable(f"a key is no text{_place(node)}")
            if node.value in self._keys:
                raise _unreadable(f"the key {node.value[:64]!r} is there twice, again{_place(node)}")
            self._keys.add(node.value)
        self._at_key = not self._at_key


def _place(event: yaml.Event) -> str:
    return f" in line {event.start_mark.line + 1}" if event.start_mark else ""


def _check(document: Any) -> None:
    for value, depth in _every(document, 0):
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, float) and not math.isfinite(value):
            raise _unreadable(f"{value} is no number")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise _unreadable(f"{_begun(value)[:20]}... has over 64 bits")
        if isinstance(value, dict) and (wrong := next((key for key in value if not isinstance(key, str)), "")) != "":
            raise _unreadable(f"the key {_begun(wrong)} is no text", hint="Put it in quotes.")
        if not isinstance(value, dict | list | str | int | float | None):
            raise _unreadable(f"there is a {type(value).__name__}, which JSON has not")
    try:
        msgspec.json.encode(document)
    except (ValueError, OverflowError, TypeError) as error:  # halves of characters
        raise _unreadable(str(error)) from None


def _begun(value: Any) -> str:
    try:
        return str(value)[:64]
    except ValueError:  # a number of thousands of digits, which YAML may have in hexadecimal
        return hex(value)[:64]


def _every(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    yield value, depth
    if depth <= MAX_DEPTH:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for each in inner:
            yield from _every(each, depth + 1)


def _unreadable(reason: str, hint: str | None = None) -> InvalidInputError:
    return InvalidInputError(f"The body cannot be read: {reason[:300].rstrip('.')}.", field="body", hint=hint)


def _too_deep() -> InvalidInputError:
    return InvalidInputError(
        f"The body is nested more than {MAX_DEPTH} deep.", field="body", limit=MAX_DEPTH, hint="No spec needs that."
    )
