"""``dev.sie.config.changed.v1``: a write of the catalogue as the event that tells of it. Pure.

Owns its attributes and data; docs/schemas has their schema. Who is told, and that they are, is ``relay`` and ``watch``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, cast

import msgspec
from cloudevents.core.v1.event import CloudEvent

from sie_broker.events import event_format
from sie_config.api import answers
from sie_config.api.answers import ModelChange
from sie_config.epochs.store import Event, Kind
from sie_sdk import formats

TYPE: Final = "dev.sie.config.changed.v1"
SOURCE: Final = "/v1/configs"
MOST_BYTES = 256 * 1024
"""Of the data; of a larger write the values are left out, and ``complete`` is false. They are in the history."""


class ConfigChanged(msgspec.Struct, frozen=True):
    """Everything one write changed; ``epoch`` counts the writes."""

    epoch: int
    kind: Kind
    actor: str
    changes: list[ModelChange]
    note: str = ""
    complete: bool = True


def changed(event: Event) -> CloudEvent:
    """The event of a write; its id is the epoch, so that who hears it twice knows."""
    attributes = {
        "specversion": "1.0",
        "id": str(event.epoch),
        "source": SOURCE,
        "type": TYPE,
        "time": datetime.fromtimestamp(event.at, UTC),
        "sequence": f"{event.epoch:020}",
        "datacontenttype": formats.JSON,
    }
    return CloudEvent(attributes, _data(event))


def as_json(event: Event) -> bytes:
    """The same in structured mode."""
    return event_format.to_json(changed(event))


def _data(event: Event) -> bytes:
    changes = answers.changes(event.changes)
    # A kind that only a newer version knows is told as it is.
    told = ConfigChanged(event.epoch, cast(Kind, event.kind), event.actor, changes, event.note, not event.unread)
    data = msgspec.json.encode(told)
    if len(data) <= MOST_BYTES:
        return data
    short = [msgspec.structs.replace(each, fields=[]) for each in told.changes]
    return msgspec.json.encode(msgspec.structs.replace(told, changes=short, complete=False))
