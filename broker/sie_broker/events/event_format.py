"""CloudEvents as the JSON event format 1.0 writes them, and the rules every attribute keeps, as pure functions.

Owns the canonical form of attribute values, reading and writing one event or a batch as JSON, and the refusal of all
that is no event. Not here: headers and modes (``binding``), the hot path's own records (``envelope``).

The record is the ``cloudevents`` package's; its readers are not used, for they guess: msgpack that happens to be UTF-8
comes back as text, and a list is written as Python's repr. Here data is read as bytes, exactly as they came (in JSON
the text of ``data``), or as None where there are none; what they mean is for whoever reads ``datacontenttype``.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import CloudEvent

from sie_sdk.errors import InvalidInputError, PayloadTooLargeError
from sie_sdk.formats import JSON

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
MAX_BATCH = 1000
"""The most events in one batch."""
MAX_ATTRIBUTES = 100
"""The most attributes of one event: several times what any source adds. Each is looked at for 3 us, in the one thread
that reads large bodies, and a body of 64 MiB has room for millions."""
_LARGE = 1 << 20
"""Of a body of more nothing is made before it is known to be of use."""

REQUIRED: Final = ("specversion", "id", "source", "type")
_CORE = {*REQUIRED, "subject", "dataschema", "datacontenttype"}  # strings all; time has its own form
_INTEGERS = range(-(2**31), 2**31)

_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})")
_MEDIA_TYPE = re.compile(r"[!-.0-~]+/[!-~]([ -~]*[!-~])?")
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
"""What the specification's String may not hold: control characters, surrogates, noncharacters."""


class _Whole(msgspec.Struct, frozen=True):
    """An element of a batch that has what every event has, whatever it is."""

    specversion: msgspec.Raw
    id: msgspec.Raw
    source: msgspec.Raw
    type: msgspec.Raw


class _Name(str):
    """A member's name, at which msgspec asks us."""

    __slots__ = ()


_wholes = msgspec.json.Decoder(list[_Whole])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_value = msgspec.json.Decoder(msgspec.Raw)


# -- attributes --------------------------------------------------------------------------------------------------------


def event(attributes: Mapping[str, Any], data: bytes | None, prefix: str = "") -> CloudEvent:
    """The event of these attributes as they were read: strings, or in JSON also booleans and integers.

    ``prefix`` goes before an attribute's name where an error names it (``ce-``, ``[3].``). An event without a time
    stays without one.

    Raises:
        InvalidInputError: an attribute is missing, misnamed or malformed; ``field`` names it. Or there are too many.
    """
    if len(attributes) > MAX_ATTRIBUTES:
        raise _too_many(prefix)
    for name in REQUIRED:
        if name not in attributes:
            raise missing(name, prefix)
    values = {name: _checked(name, value, prefix) for name, value in attributes.items()}
    try:
        made = CloudEvent(values, data)
    except CloudEventValidationError as error:
        name, reasons = next(iter(error.errors.items()))
        raise InvalidInputError(f"{prefix}{name} is wrong: {reasons[0]}.", field=prefix + name) from None
    if "time" not in attributes:
        del values["time"]  # the package puts the present in there
    return made


def _too_many(prefix: str) -> InvalidInputError:
    element = prefix.removesuffix(".") if prefix.endswith(".") else ""
    return InvalidInputError(
        f"{element or 'The event'} has over {MAX_ATTRIBUTES} attributes.",
        field=element or ("headers" if prefix else "body"),
        limit=MAX_ATTRIBUTES,
        hint="What is not about the event itself belongs into its data.",
    )


def missing(name: str, prefix: str) -> InvalidInputError:
    """What to raise where the required attribute ``name`` is not there."""
    return InvalidInputError(
        f"{prefix}{name} is missing.",
        field=prefix + name,
        hint=f"Every event has {', '.join(prefix + each for each in REQUIRED)}; in JSON it is sent as {STRUCTURED}.",
    )


def canonical(name: str, value: Any) -> str:
    """An attribute's value as the specification writes it: ``true``, ``-3``, an RFC 3339 time, base64, or the text.

    Raises:
        InvalidInputError: the value has no such form; ``field`` is ``name``.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() if value in _INTEGERS:
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if (offset := value.utcoffset()) is not None:
            # RFC 3339 has no seconds in its offsets.
            kept = value if offset.seconds % 60 == 0 and not offset.microseconds else value.astimezone(UTC)
            text = kept.isoformat()
            return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
        case str():
            return _text(name, value)
    raise InvalidInputError(
        f"{name} cannot be this {type(value).__name__}.",
        field=name,
        limit="text, true or false, an integer of 32 bits, bytes, or a time with an offset",
    )


def _checked(name: str, value: Any, prefix: str) -> Any:
    field = _named(name, prefix)
    if name in _CORE or name == "time":
        if not isinstance(value, str):
            raise InvalidInputError(f"{field} is no text.", field=field)
        _text(field, value)
        if name == "datacontenttype" and not _MEDIA_TYPE.fullmatch(value):
            raise InvalidInputError(f"{field} is no media type: {value!r:.80}.", field=field, limit="RFC 2046")
        return value if name != "time" else instant(field, value)
    canonical(field, value)
    return value


def _named(name: str, prefix: str) -> str:
    """What errors call this attribute.

    Raises:
        InvalidInputError: no attribute can have that name.
    """
    if _NAME.fullmatch(name):
        return prefix + name
    field = prefix + name[:80].encode("ascii", "backslashreplace").decode()
    raise InvalidInputError(f"{field} is no attribute.", field=field, hint="Names are lower-case letters and digits.")


def _text(field: str, value: str) -> str:
    if found := _FORBIDDEN.search(value):
        raise InvalidInputError(
            f"{field} holds U+{ord(found[0]):04X}.",
            field=field,
            limit="no control characters, surrogates or noncharacters",
            hint="Leave it out.",
        )
    return value


def instant(field: str, value: str) -> datetime:
    """The time that an attribute's text says, with its offset.

    Raises:
        InvalidInputError: it is no RFC 3339 timestamp; ``field`` is the attribute's name.
    """
    try:
        if _TIME.fullmatch(value):
            return datetime.fromisoformat(value.upper())
    except ValueError:
        pass
    raise InvalidInputError(
        f"{field} is no time: {value!r:.80}.", field=field, limit="RFC 3339", hint="For instance 2026-01-31T12:00:00Z."
    )


# -- data --------------------------------------------------------------------------------------------------------------


def is_json(media_type: str) -> bool:
    """Whether this ``datacontenttype`` declares JSON: ``*/json`` or ``*/*+json``."""
    subtype = media_type.partition(";")[0].rpartition("/")[2].strip().lower()
    return subtype == "json" or subtype.endswith("+json")


def data_of(source: CloudEvent) -> tuple[str | None, bytes | None]:
    """The media type and the bytes of an event's data, which may be bytes, text or anything that JSON can say.

    Without a media type all but bytes is JSON, and a text under a JSON type is a JSON string: JSON that is encoded
    already is given as bytes. Other text is UTF-8.

    Raises:
        InvalidInputError: the data has no form in its type.
    """
    media_type, data = source.get_datacontenttype(), source.get_data()
    if data is None or data == b"":
        return media_type, None
    if isinstance(data, bytes):
        return media_type, data
    media_type = media_type or JSON
    try:
        if is_json(media_type):
            return media_type, msgspec.json.encode(data)
        if isinstance(data, str):
            return media_type, data.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"The data cannot be written as {media_type}: {error}.", field="data") from None
    raise InvalidInputError(
        f"The data is a {type(data).__name__}, which has no form in {media_type}.", field="data", hint="Give bytes."
    )


# -- JSON, written -----------------------------------------------------------------------------------------------------


def to_json(source: CloudEvent) -> bytes:
    """One event as JSON: data that is JSON stands in ``data`` as it is, any other in ``data_base64``.

    Raises:
        InvalidInputError: an attribute or the data has no form in JSON.
    """
    media_type, data = data_of(source)
    members: dict[str, Any] = {
        name: value if isinstance(value, bool) else int(text) if isinstance(value, int) else text
        for name, value, text in attributes_of(source)
    }
    if media_type is not None:
        members["datacontenttype"] = media_type
    if data is not None:
        if media_type is not None and is_json(media_type) and _well_formed(data):
            members["data"] = msgspec.Raw(data)
        else:
            members["data_base64"] = base64.b64encode(data).decode()
    return msgspec.json.encode(members)


def attributes_of(source: CloudEvent) -> list[tuple[str, Any, str]]:
    """Name, value and canonical text of each attribute that is set, checked; the media type is `data_of`'s.

    Raises:
        InvalidInputError: an attribute is misnamed or has no canonical form.
    """
    rows = []
    for name, value in source.get_attributes().items():
        if value is None or name == "datacontenttype":
            continue
        text = canonical(name, value)
        _checked(name, text, "")
        rows.append((name, value, text))
    if (media_type := source.get_datacontenttype()) is not None:
        _checked("datacontenttype", media_type, "")
    return rows


def _well_formed(data: bytes) -> bool:
    """Whether ``data`` is JSON that comes back as the same bytes: space around it would not."""
    try:
        data.decode()
        return len(memoryview(_value.decode(data))) == len(data)
    except (ValueError, RecursionError):
        return False


# -- JSON, read --------------------------------------------------------------------------------------------------------


def from_json(body: bytes, prefix: str = "") -> CloudEvent:
    """Read one event; ``prefix`` as in `event`. Members that are null are absent, but for JSON data.

    Raises:
        InvalidInputError: it is no JSON, or no event.
    """
    members = _members(body, prefix)
    payload: dict[str, msgspec.Raw] = {name: members.pop(name) for name in ("data", "data_base64") if name in members}
    if len(members) > MAX_ATTRIBUTES:  # before any is looked at
        raise _too_many(prefix)
    read = {name: _attribute(_named(name, prefix), raw) for name, raw in members.items()}
    attributes = {name: value for name, value in read.items() if value is not None}
    if "data" in payload:
        attributes.setdefault("datacontenttype", JSON)  # implied there; said aloud, for in other formats it is not
    media_type = attributes.get("datacontenttype", "")
    if media_type != "":
        _checked("datacontenttype", media_type, prefix)
    return event(attributes, _data(payload, media_type, prefix), prefix)


def _members(body: bytes, prefix: str) -> dict[str, msgspec.Raw]:
    """What an event says, unread. Of a large one no more is made than it may say: all would be ten times its size."""
    if len(body) <= _LARGE:
        members: dict[str, msgspec.Raw] = _decoded(_object, body, prefix, "an object")
        return members
    seen = itertools.count(1)

    def name(_: type, text: str) -> _Name:
        if next(seen) > MAX_ATTRIBUTES + 2:  # data and data_base64 are none
            raise _too_many(prefix)
        return _Name(text)

    counted = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=name)
    return {str(each): raw for each, raw in _decoded(counted, body, prefix, "an object").items()}


def from_json_batch(body: bytes) -> list[CloudEvent]:
    """Read a batch, which may be empty.

    Raises:
        PayloadTooLargeError: it holds over `MAX_BATCH` events; none is made then.
        InvalidInputError: it is no JSON array, or one of its elements is no event: ``[3].id`` is missing.
    """
    if len(body) > _LARGE:  # ends at the first that is none: millions of zeros would take gigabytes below
        _decoded(_wholes, body, "", "an array of events")
    elements = _decoded(_array, body, "", "an array")
    if len(elements) > MAX_BATCH:
        raise PayloadTooLargeError(
            f"{len(elements)} events are more than one batch may hold.",
            field="body",
            limit=MAX_BATCH,
            hint=f"Send at most {MAX_BATCH} events at once.",
        )
    return [from_json(bytes(raw), f"[{index}].") for index, raw in enumerate(elements)]


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes, prefix: str, wanted: str) -> Any:
    try:
        body.decode()  # JSON is UTF-8, also in what is passed on unread
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{prefix.rstrip('.') or 'The body'} is not {wanted} of JSON: {str(error).rstrip('.')}.",
            field=prefix.rstrip(".") or "body",
        ) from None


def _attribute(field: str, raw: msgspec.Raw) -> Any:
    if bytes(memoryview(raw)[:1]) in (b"[", b"{"):  # not made to be refused: megabytes would become gigabytes
        raise InvalidInputError(f"{field} is a list or an object.", field=field, limit="text, a number, true or false")
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{field} is wrong: {error}.", field=field) from None


def _data(payload: dict[str, msgspec.Raw], media_type: str, prefix: str) -> bytes | None:
    if len(payload) == 2:
        raise InvalidInputError(
            "There is data and data_base64.", field=f"{prefix}data_base64", hint="Send one of the two."
        )
    if "data_base64" in payload:
        field = f"{prefix}data_base64"
        try:
            text = _attribute(field, payload["data_base64"])
            return base64.b64decode("" if text is None else text, validate=True) or None
        except (ValueError, TypeError):
            raise InvalidInputError(f"{field} is no base64.", field=field) from None
    if "data" not in payload:
        return None
    if is_json(media_type):
        return bytes(payload["data"])
    match _attribute(f"{prefix}data", payload["data"]):
        case None | "":
            return None
        case str(text):
            return text.encode()
    raise InvalidInputError(
        f"{prefix}data is no text, but its type is {media_type}.",
        field=f"{prefix}data",
        hint=f"Send datacontenttype {JSON}, a text, or data_base64.",
    )
