"""What a request's body is full of: texts, ids, packed vectors and media take no more memory than they have bytes, or a
few times as much; anything else up to sixty times, vectors in JSON among it.

Owns telling the two apart, counting before anything is made of either, and finding what stands where nobody reads it:
pure functions over bytes. The limits are ``wire``'s.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from sie_sdk.formats import JSON, MSGPACK, MediaType
from sie_sdk.types import EncodeParams, ExtractParams, Operation

MEDIA = ("images", "audio", "video", "document")
IN_PARAMS = "params.is_query"
STRAYS: dict[Operation, dict[str, str]] = {
    "encode": {name: f"params.{name}" for name in EncodeParams.__struct_fields__}
    | dict.fromkeys(("is_query", IN_PARAMS), "params.options.is_query"),
    "score": {"params": "instruction and options beside items"},
    "extract": {name: f"params.{name}" for name in ExtractParams.__struct_fields__},
}
"""What is easily written where nobody reads it, for score is flat and the others are not; and where it is read."""

_ABSENT = (b"", b"null", b"\xc0")
_EMPTY = (*_ABSENT, b"[]", b"\x90")

_STRING = re.compile(rb'"[^"]*"')


class Unread(msgspec.Struct, frozen=True):
    """What an item may hold, as it stands in the body."""

    text: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    multivector: msgspec.Raw = msgspec.Raw()
    images: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()
    video: msgspec.Raw = msgspec.Raw()
    document: msgspec.Raw = msgspec.Raw()

    def has(self, field: str, *, empty: bool = True) -> bool:
        """Whether the item holds something there; ``empty``: an empty list counts."""
        return bytes(getattr(self, field)) not in (_ABSENT if empty else _EMPTY)


class Holder(msgspec.Struct, frozen=True):
    """All of its items."""

    items: list[Unread]
    query: Unread


class _Body(msgspec.Struct, frozen=True):
    """``query`` may be anything where nobody reads it: it is score's, and others ignore what they do not know."""

    items: list[Unread] = []
    query: msgspec.Raw = msgspec.Raw()


_Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)] | None


class _Bare(msgspec.Struct, frozen=True, gc=False):
    """An item that holds no media; reading any other into it fails."""

    images: _Nothing = None
    audio: _Nothing = None
    video: _Nothing = None
    document: _Nothing = None


class _Params(msgspec.Struct, frozen=True):
    is_query: None = None


def _bare_body(operation: Operation) -> type[msgspec.Struct]:
    """A body with nothing where nobody reads it; reading any other into it fails."""
    fields: list[Any] = [("items", list[_Bare])]
    if operation == "score":
        fields.append(("query", _Bare))
    if IN_PARAMS in STRAYS[operation]:
        fields.append(("params", _Params | None, None))
    fields += [(name, None, None) for name in STRAYS[operation] if name != IN_PARAMS]
    return msgspec.defstruct("_BareBody", fields, frozen=True)


_bare: dict[MediaType, dict[Operation, msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]]] = {
    JSON: {operation: msgspec.json.Decoder(_bare_body(operation)) for operation in STRAYS},
    MSGPACK: {operation: msgspec.msgpack.Decoder(_bare_body(operation)) for operation in STRAYS},
}
_fields: dict[MediaType, msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]] = {
    JSON: msgspec.json.Decoder(dict[str, msgspec.Raw]),
    MSGPACK: msgspec.msgpack.Decoder(dict[str, msgspec.Raw]),
}

_json, _msgpack = msgspec.json.Decoder(_Body), msgspec.msgpack.Decoder(_Body)
_json_item, _msgpack_item = msgspec.json.Decoder(Unread), msgspec.msgpack.Decoder(Unread)
_packed = msgspec.msgpack.Decoder(dict[bytes, msgspec.Raw])


class TooManyItems(Exception):  # noqa: N818 - what becomes of it is ``wire``'s, which lets it out to nobody
    """A body holds more items than one may."""


@functools.cache
def _msgpack_of(most: int) -> msgspec.msgpack.Decoder[_Body]:
    """Refuses an array of more items by its header, before it makes any."""
    limited = msgspec.defstruct(
        "_Limited", [("items", Annotated[list[Unread], msgspec.Meta(max_length=most)])], bases=(_Body,), frozen=True
    )
    return msgspec.msgpack.Decoder(limited)


def unread(body: bytes, media: MediaType, most: int | None = None) -> Holder:
    """The items of a body, ``most`` at the most.

    Raises:
        TooManyItems: there are more; in msgpack none is made then.
        ValueError, RecursionError: it is none.
    """
    packed = _msgpack if most is None else _msgpack_of(most)
    try:
        whole = _json.decode(body) if media == JSON else packed.decode(body)
    except msgspec.ValidationError as error:
        if most is not None and str(error) == f"Expected `array` of length <= {most} - at `$.items`":
            raise TooManyItems from None
        raise
    if most is not None and len(whole.items) > most:  # of JSON, where they are counted once they are there
        raise TooManyItems
    query = Unread()
    with suppress(msgspec.ValidationError):
        if len(memoryview(whole.query)):
            query = (_json_item if media == JSON else _msgpack_item).decode(whole.query)
    return Holder(whole.items, query)


def is_bare(body: bytes, media: MediaType, operation: Operation) -> bool:
    """Whether a request has no media, in items or query, and no `STRAYS`. Texts are passed over, not searched."""
    try:
        _bare[media][operation].decode(body)
    except msgspec.ValidationError:
        return False
    return True


def stray(body: bytes, media: MediaType, operation: Operation) -> str | None:
    """The first of `STRAYS` that a body has."""
    strays, read = STRAYS[operation], _fields[media].decode
    found: dict[str, msgspec.Raw] = read(body)
    if IN_PARAMS in strays and bytes(found.get("params", b"")) not in _ABSENT:
        found |= {f"params.{name}": value for name, value in read(found["params"]).items()}
    return next((name for name in strays if bytes(found.get(name, b"")) not in _ABSENT), None)


def crowded(body: bytes, marks: tuple[bytes, ...], limit: int) -> bool:
    """Whether JSON has more than ``limit`` texts and ``marks`` (``{``, ``[``, ``,``) outside of texts together.

    They are counted and not made: it is their number that takes memory and time.
    """
    if body.count(b'"') // 2 + sum(map(body.count, marks)) <= limit:
        return False  # nearly always, without a look at what stands in texts
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = plain.count(b'"') // 2
    return texts > limit or texts + sum(map(_STRING.sub(b"", plain).count, marks)) > limit


def other_bytes(body: bytes, media: MediaType, most: int) -> int:
    """How much of a body is anything else, wherever it stands: what is there twice is made before it is thrown away.

    ``most``: of its items. JSON is to be checked for `crowded` before, whose items are counted once they are made.

    Raises:
        TooManyItems: there are more.
        ValueError, RecursionError: it is no body.
    """
    holder = unread(body, media, most)
    bulk = 0
    for item in (holder.query, *holder.items):
        bulk += sum(len(memoryview(each)) for each in (item.text, item.id, *(getattr(item, name) for name in MEDIA)))
        if media == MSGPACK:
            bulk += _packed_vectors(bytes(item.multivector))
    return len(body) - bulk


def _packed_vectors(raw: bytes) -> int:
    """The bytes of a packed array, which is a map of a few keys (``arrays``)."""
    if not raw or raw[0] & 0xF0 != 0x80:
        return 0
    data = bytes(_packed.decode(raw).get(b"data", b""))
    return len(data) if data[:1] in (b"\xc4", b"\xc5", b"\xc6") else 0
