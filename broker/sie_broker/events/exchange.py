"""An inference event in, its result event out, whoever sends the one and takes the other: pure functions over events.

Owns what such an event must have and which HTTP answers its sender may be given. Not here: how events lie on the wire
(``binding``), our own work and replies on NATS (``envelope``), who may ask for what.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

import msgspec
from cloudevents.core.v1.event import CloudEvent

from sie_broker.events import event_format
from sie_broker.events.envelope import RESULT_TYPE, work_type
from sie_broker.records import Reply
from sie_sdk import formats
from sie_sdk.errors import DeadlineExceededError, InvalidInputError
from sie_sdk.formats import MediaType
from sie_sdk.types import Operation

OPERATIONS: dict[str, Operation] = {work_type(operation): operation for operation in get_args(Operation)}
"""The operation of each inference event, ``dev.sie.encode.v1`` for instance."""


NAMED = "operation"
"""The attribute that makes a request of an event of any other type: many sources of events cannot choose theirs."""


class Asked(NamedTuple):
    """What an inference event asks for; ``data`` is a request body in the format ``media``."""

    operation: Operation
    model: str
    data: bytes
    media: MediaType


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def read(event: CloudEvent, prefix: str = "") -> Asked:
    """Read an inference event; ``prefix`` goes before an attribute's name in errors, as it was sent (``ce-``).

    Raises:
        InvalidInputError: it is none, or lacks its model or its data.
        UnsupportedMediaTypeError: its data is neither msgpack nor JSON.
    """
    operation = OPERATIONS.get(event.get_type()) or _named(event, prefix)
    model, data = extension(event, "model"), event.get_data()
    if not isinstance(data, bytes):
        raise InvalidInputError(
            "The event has no data.",
            field="data",
            hint=f"Send the body of POST /v1/{operation}/{model or '{model}'} as its data.",
        )
    # Without a type data is JSON, as in the JSON format: a message that a person types has none.
    media = formats.body_type(event.get_datacontenttype() or formats.JSON)
    if not model and media == formats.JSON:
        model, data = _told_in_data(data)
    if not model:
        raise InvalidInputError(
            f"{prefix}model is missing.", field=f"{prefix}model", hint="Name the model; GET /v1/models lists them."
        )
    return Asked(operation, model, data, media)


def _told_in_data(data: bytes) -> tuple[str, bytes]:
    """The model and the body of a request whose data says both, all that ``kn event send`` can say.

    It sets no attributes, and fields but no lists: there one item stands for itself.
    """
    try:
        body = _fields.decode(data)
        model = _text.decode(body.pop("model", b'""'))
    except (ValueError, RecursionError):
        return "", data  # who has named the model is told what is wrong with the data
    items = bytes(body.get("items", b""))
    if items.startswith(b"{"):
        body["items"] = msgspec.Raw(b"[%b]" % items)
    return model, msgspec.json.encode(body)


def _named(event: CloudEvent, prefix: str) -> Operation:
    """What an event of another type asks for."""
    named = extension(event, NAMED)
    for operation in get_args(Operation):
        if named == operation:
            return operation  # type: ignore[no-any-return]  # one of the literals
    if named:
        raise InvalidInputError(
            f"{prefix}{NAMED} {named[:80]!r} is none.",
            field=f"{prefix}{NAMED}",
            limit=", ".join(get_args(Operation)),
        )
    raise InvalidInputError(
        f"{event.get_type()[:80]} is no inference event.",
        field=f"{prefix}type",
        limit=", ".join(OPERATIONS),
        hint=f"Send as {prefix}type one of {', '.join(OPERATIONS)}, "
        f"or as {prefix}{NAMED} one of {', '.join(get_args(Operation))}.",
    )


def extension(event: CloudEvent, name: str) -> str:
    """An extension attribute as text, empty where there is none."""
    value = event.get_attributes().get(name)
    return "" if value is None else event_format.canonical(name, value)


def expiry(event: CloudEvent, now: float, prefix: str = "") -> float | None:
    """When nobody wants the answer any more (extension ``expirytime``), in seconds since the epoch; None where unsaid.

    Raises:
        InvalidInputError: it is no time.
        DeadlineExceededError: it has passed.
    """
    if not (said := extension(event, "expirytime")):
        return None
    at = event_format.instant(f"{prefix}expirytime", said).timestamp()
    if at <= now:
        raise DeadlineExceededError("The event has expired.", field=f"{prefix}expirytime")
    return at


def result(reply: Reply, media: MediaType, source: str, at: float, traceparent: str | None = None) -> CloudEvent:
    """The result event of ``reply``, its data in the format ``media``; an error's is always JSON.

    Args:
        reply: the answer.
        media: what its data becomes.
        source: who says so.
        at: when it happened, in seconds since the epoch.
        traceparent: the request's, carried on.
    """
    from sie_sdk import replies  # brings numpy, which the demand holder needs for nothing else

    failed = reply.status >= 400
    data = reply.data if failed or media == formats.MSGPACK else replies.to_json(reply.data)
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": reply.id,
        "source": source,
        "type": RESULT_TYPE,
        "time": datetime.fromtimestamp(at, UTC),
        "datacontenttype": formats.JSON if failed else media,
        "status": reply.status,
    }
    if reply.cause is not None:
        attributes["causationid"] = reply.cause
    if traceparent is not None:
        attributes["traceparent"] = traceparent
    return CloudEvent(attributes, data)


def http_status(status: int) -> int:
    """The status that tells an event's sender of an error.

    Senders that keep Knative's delivery contract send again after 404, 408, 409, 429 and 5xx, and give up at once
    after any other 4xx. What stays as it is is 400 to them: a model that nobody knows or serves, an event that has
    expired.
    """
    return 400 if status in (404, 408, 409, 501, 504) else status
