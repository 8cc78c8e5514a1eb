"""Bodies that were valid once: as strategies of hypothesis, from a value to the bytes of a broken one.

Owns what is done to values (``mutated``) and to bytes (``spoilt``), and an encoder that writes what none of the usual
ones would: keys twice, keys of any type, extensions, surrogates.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from sie_sdk import wire


class Pairs(NamedTuple):
    """A map as it is written: keys may repeat, and be anything."""

    pairs: tuple[tuple[Any, Any], ...]


class Ext(NamedTuple):
    """A msgpack extension; -1 is a timestamp. JSON has none."""

    kind: int
    data: bytes


class Deep(NamedTuple):
    """Arrays (or maps) in each other."""

    levels: int
    maps: bool


class Declared(NamedTuple):
    """A msgpack header that promises ``length`` elements or bytes; nothing follows."""

    head: int
    length: int


TEXTS = (
    "",
    "hello",
    "crash",
    "refuse",
    "later",
    "x" * 3000,
    "\x00",
    "\ud800",
    "é" * 40,
    "🙂",
    "item-0",
    "{model}",
    "%2F",
)
NUMBERS = (0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, math.nan, math.inf, -math.inf, 1e308, 5e-324)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    b"",
    b"\xff\xfe",
    [],
    {},
    [[]],
    Pairs((("text", "a"), ("text", 1))),
    Pairs(((1, 2), (b"a", 3))),
)
EXTENSIONS = (
    Ext(-1, b"\xff" * 4),
    Ext(-1, b"\xff" * 12),
    Ext(-1, b"\x00" * 8),
    Ext(-1, b"\x00" * 3),
    Ext(5, b"anything"),
    Ext(127, b""),
)
NESTED = tuple(Deep(levels, maps) for levels in (40, 300, 1500, 20_000) for maps in (False, True))
PROMISES = tuple(
    Declared(head, length) for head in (0xC6, 0xDB, 0xDD, 0xDF, 0xC9) for length in (2**32 - 1, 2**31, 2**24, 2**16, 7)
)
ARRAYS = (
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [1, 2], b"data": b"\x00" * 8},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2**62, 2**62], b"data": b""},
    {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [0, 2**40], b"data": b""},
    {b"nd": True, b"type": "O", b"kind": b"O", b"shape": [1], b"data": b"\x80\x04."},
    {b"nd": True, b"type": "<f8", b"kind": b"", b"shape": [-1, -1], b"data": b"\x00" * 8},
    {b"nd": False, b"type": "<f2", b"data": b"\x00\x7c"},
    {b"nd": True, b"type": "<i8", b"shape": [[1]], b"data": b"\x00" * 8},
    [[1, 2], [3]],
    [[math.nan]],
    [[1e308, 1e308]],
)
NAMES = (
    "text",
    "id",
    "items",
    "metadata",
    "multivector",
    "images",
    "params",
    "options",
    "labels",
    "query",
    "model",
    "input",
)

junk = st.one_of(
    st.sampled_from((*TEXTS, *NUMBERS, *ODD)),
    st.sampled_from((*EXTENSIONS, *NESTED, *PROMISES, *ARRAYS)),
    st.text(max_size=12),
    st.integers(),
    st.floats(),
    st.binary(max_size=12),
)
keys = st.one_of(
    st.sampled_from((*NAMES, 1, -1, 1.5, math.nan, None, True, b"nd", b"text", "", "\ud800", Ext(-1, b"\0" * 4)))
)


class Change(NamedTuple):
    """One change: of the value that ``where`` leads to, wherever that is in the value at hand."""

    kind: str
    where: int
    key: Any
    value: Any


changes = st.lists(
    st.builds(
        Change,
        st.sampled_from(("put", "put", "put", "drop", "add", "add", "repeat", "wrap", "key")),
        st.integers(0, 255),
        keys,
        junk,
    ),
    max_size=3,
)


def mutated(value: Any, change: Change) -> Any:
    """``value`` with one change somewhere in it."""
    places = _places(value)
    path = places[change.where % len(places)]
    match change.kind:
        case "put":
            return _at(value, path, lambda _: change.value)
        case "wrap":
            return _at(value, path, lambda old: [old, change.value])
        case "drop":
            return _at(value, path[:-1], lambda old: _without(old, path[-1])) if path else {}
        case "repeat":
            return _at(value, path, lambda old: [old] * (2 + change.where % 40))
        case "add":
            return _at(value, path, lambda old: _with(old, change.key, change.value))
        case _:
            return _at(value, path, lambda old: Pairs(((change.key, old),)))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in _places(each, (*path, key)))]


def _at(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    if isinstance(value, dict):
        return {**value, path[0]: _at(value[path[0]], path[1:], change)}
    copy = list(value)
    copy[path[0]] = _at(copy[path[0]], path[1:], change)
    return copy


def _without(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name != key}
    return [each for place, each in enumerate(value) if place != key]


def _with(value: Any, key: Any, added: Any) -> Any:
    if isinstance(value, dict):
        return Pairs((*value.items(), (key, added)))
    return [*value, added] if isinstance(value, list) else Pairs(((key, added),))


# -- bytes -------------------------------------------------------------------------------------------------------------


class Spoil(NamedTuple):
    """One change of bytes."""

    kind: str
    where: int
    data: bytes


_some = st.lists(
    st.builds(
        Spoil,
        st.sampled_from(("cut", "flip", "insert", "prepend", "append", "replace")),
        st.integers(0, 2**16),
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from((b"\xdd\xff\xff\xff\xff", b"[" * 5000, b"\x91" * 5000, b"\xef\xbb\xbf", b"\x00")),
        ),
    ),
    min_size=1,
    max_size=2,
)
spoils: st.SearchStrategy[list[Spoil]] = st.one_of(st.just([]), st.just([]), _some)
"""Most bodies are whole: what is wrong with them is what they say."""


def spoilt(body: bytes, spoil: Spoil) -> bytes:
    """``body`` with one change of its bytes."""
    at = spoil.where % (len(body) + 1)
    match spoil.kind:
        case "cut":
            return body[:at]
        case "flip":
            return body[:at] + bytes(byte ^ 0xFF for byte in body[at : at + 1]) + body[at + 1 :]
        case "insert":
            return body[:at] + spoil.data + body[at:]
        case "prepend":
            return spoil.data + body
        case "append":
            return body + spoil.data
        case _:
            return spoil.data


def encoded(value: Any, media: str) -> bytes:
    """``value`` in msgpack or, where that is what ``media`` is not, in JSON."""
    return to_msgpack(value) if media == wire.MSGPACK else to_json(value).encode("utf-8", "surrogatepass")


def to_json(value: Any) -> str:
    """JSON of anything: what it cannot say becomes text, NaN stays NaN, keys may repeat."""
    match value:
        case Pairs(pairs):
            return "{" + ",".join(f"{to_json(_key(key))}:{to_json(each)}" for key, each in pairs) + "}"
        case Deep(levels, maps):
            return ('{"a":' if maps else "[") * levels + "1" + ("}" if maps else "]") * levels
        case Ext() | Declared():
            return json.dumps(repr(value))
        case dict():
            return "{" + ",".join(f"{to_json(_key(key))}:{to_json(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(to_json, value)) + "]"
        case bytes():
            return json.dumps(value.decode("latin-1"))
        case _:
            return json.dumps(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else key.decode("latin-1") if isinstance(key, bytes) else str(key)


def to_msgpack(value: Any) -> bytes:
    """msgpack of anything; integers over 64 bits become their text."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() if -(2**63) <= value < 2**64:
            return b"\xd3" + struct.pack(">q", value) if value < 2**63 else b"\xcf" + struct.pack(">Q", value)
        case int():
            return to_msgpack(str(value))
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            text = value.encode("utf-8", "surrogatepass")
            return b"\xdb" + struct.pack(">I", len(text)) + text
        case bytes():
            return b"\xc6" + struct.pack(">I", len(value)) + value
        case Ext(kind, data):
            return b"\xc9" + struct.pack(">Ib", len(data), kind) + data
        case Deep(levels, maps):
            return (b"\x81\xa1a" if maps else b"\x91") * levels + b"\x01"
        case Declared(head, length):
            return bytes([head]) + struct.pack(">I", length)
        case Pairs(pairs):
            return _map(pairs)
        case dict():
            return _map(tuple(value.items()))
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(to_msgpack, value))


def _map(pairs: tuple[tuple[Any, Any], ...]) -> bytes:
    written = b"".join(to_msgpack(key) + to_msgpack(each) for key, each in pairs)
    return b"\xdf" + struct.pack(">I", len(pairs)) + written
