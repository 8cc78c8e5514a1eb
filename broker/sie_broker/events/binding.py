"""CloudEvents on NATS and on HTTP: the two protocol bindings 1.0, as pure functions over (headers, body).

Owns headers, their escaping and which mode a message is in. Not here: attributes and JSON (``event_format``), the work
and replies of the hot path (``envelope``), which are such messages too but built by hand, for an event object costs
some 24 us at each end. These functions are for the edges, where anybody's events come in.

The package's own HTTP reader is not used: it takes any ``ce-`` header for binary mode and cannot read a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from cloudevents.core.v1.event import CloudEvent

from sie_broker.events import event_format
from sie_broker.events.envelope import escape
from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_sdk.errors import InvalidInputError, UnsupportedMediaTypeError

PREFIX: Final = "ce-"
Headers = Mapping[str, str]
Message = tuple[dict[str, str], bytes]

_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)


# -- NATS --------------------------------------------------------------------------------------------------------------


def to_nats(event: CloudEvent, structured: bool = False) -> Message:
    """Headers and body of the NATS message that carries ``event``, in binary mode unless ``structured``.

    Raises:
        InvalidInputError: an attribute or the data has no form on the wire; ``field`` names it.
    """
    if structured:
        return {"Content-Type": STRUCTURED}, event_format.to_json(event)
    headers, media_type, body = _binary(event)
    if media_type is not None:
        headers[f"{PREFIX}datacontenttype"] = escape(media_type)
    return headers, body


def from_nats(headers: Headers | None, body: bytes) -> CloudEvent:
    """Read the event of a NATS message, in either mode.

    A Content-Type of ``application/cloudevents*`` says structured (the specification's rule), the header
    ``ce-specversion`` says binary, and neither of them structured as well (what Go senders do).

    Raises:
        InvalidInputError: the message is no event; ``field`` names the attribute (``ce-id``) at fault.
    """
    named = _Headers(headers or {})
    mode = _mode(named.content_type)
    if mode == BATCH:
        raise UnsupportedMediaTypeError(
            "A batch cannot travel in a NATS message.", field="Content-Type", hint="Send each event in its own message."
        )
    if mode == STRUCTURED or not any(name == "specversion" for name, _ in named.attributes):
        if not mode and not body.lstrip().startswith(b"{"):
            raise event_format.missing("specversion", PREFIX)
        return event_format.from_json(body)
    attributes = named.read()
    if named.content_type:
        attributes.setdefault("datacontenttype", named.content_type)
    return event_format.event(attributes, body or None, PREFIX)


# -- HTTP --------------------------------------------------------------------------------------------------------------


def to_http(event: CloudEvent, structured: bool = False) -> Message:
    """Headers and body of the HTTP message that carries ``event``, in binary mode unless ``structured``.

    Data that is itself of type ``application/cloudevents*`` travels structured: binary it would be taken for the event.

    Raises:
        InvalidInputError: an attribute or the data has no form on the wire; ``field`` names it.
    """
    if structured or _is_event(event.get_datacontenttype() or ""):
        return {"content-type": STRUCTURED}, event_format.to_json(event)
    headers, media_type, body = _binary(event)
    if media_type is not None:
        headers["content-type"] = media_type
    return headers, body


def from_http(headers: Headers, body: bytes) -> list[CloudEvent]:
    """Read the events of an HTTP message: one in binary or structured mode, any number in a batch.

    Raises:
        UnsupportedMediaTypeError: an event format that is not JSON.
        PayloadTooLargeError: a batch of too many events.
        InvalidInputError: the message is no event; ``field`` names the attribute (``ce-id``, ``[3].id``) at fault.
    """
    named = _Headers(headers)
    mode = _mode(named.content_type)
    if mode == BATCH:
        return event_format.from_json_batch(body)
    if mode == STRUCTURED:
        return [event_format.from_json(body)]
    attributes = named.read()
    if named.content_type:
        attributes["datacontenttype"] = named.content_type
    return [event_format.event(attributes, body or None, PREFIX)]


def prefix(headers: Headers) -> str:
    """What goes before an attribute's name in this message: ``ce-`` in binary mode, nothing in the others."""
    named = _Headers(headers)
    binary = any(name == "specversion" for name, _ in named.attributes)
    return PREFIX if binary and not _is_event(named.content_type) else ""


def is_event(headers: Headers) -> bool:
    """Whether an HTTP message says of itself that it is an event, or a batch of them."""
    named = _Headers(headers)
    return _is_event(named.content_type) or any(name == "specversion" for name, _ in named.attributes)


def is_batch(headers: Headers) -> bool:
    """Whether an HTTP message is a batch of events."""
    content_type = _Headers(headers).content_type
    return _is_event(content_type) and _mode(content_type) == BATCH


def wants_structured(accept: str) -> bool:
    """Whether an ``Accept`` header asks for an answer in structured mode."""
    return any(wanted.partition(";")[0].strip().lower() == STRUCTURED for wanted in accept.split(","))


# -- headers -----------------------------------------------------------------------------------------------------------


def _binary(event: CloudEvent) -> tuple[dict[str, str], str | None, bytes]:
    media_type, data = event_format.data_of(event)
    headers = {PREFIX + name: escape(text) for name, _, text in event_format.attributes_of(event)}
    return headers, media_type, data or b""


def _is_event(content_type: str) -> bool:
    return content_type.lower().startswith("application/cloudevents")


def _mode(content_type: str) -> str:
    """`STRUCTURED`, `BATCH`, or nothing where the content type does not say that the body is an event."""
    if not _is_event(content_type):
        return ""
    essence = content_type.partition(";")[0].strip().lower()
    for known in (STRUCTURED, BATCH):
        if essence in (known, known.removesuffix("+json")):
            return known
    raise UnsupportedMediaTypeError(
        f"Events of type {essence[:80]!r} are not read.", field="Content-Type", hint=f"Send {STRUCTURED}."
    )


class _Headers:
    """A message's headers, whatever the casing of their names: the content type, and the attributes still escaped."""

    def __init__(self, headers: Headers) -> None:
        self.content_type = ""
        self.attributes: list[tuple[str, str]] = []
        for name, value in headers.items():
            lower = name.lower()
            if lower == "content-type":
                self.content_type = value.strip()
            elif lower.startswith(PREFIX):
                self.attributes.append((lower[len(PREFIX) :], value))

    def read(self) -> dict[str, Any]:
        """The attributes by name.

        Raises:
            InvalidInputError: one is there twice, or its escapes are no UTF-8.
        """
        attributes: dict[str, Any] = {}
        for name, value in self.attributes:
            if name in attributes:
                raise InvalidInputError(f"{PREFIX}{name} is there twice.", field=PREFIX + name, hint="Send it once.")
            try:
                attributes[name] = _unescaped(value.strip())
            except UnicodeDecodeError:
                raise InvalidInputError(f"{PREFIX}{name} is no percent-encoded UTF-8.", field=PREFIX + name) from None
        return attributes


def _unescaped(value: str) -> str:
    # Quotes are how older senders wrote spaces; a receiver still reads them.
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _QUOTED_PAIR.sub(r"\1", value[1:-1])
    return unquote(value, errors="strict")
