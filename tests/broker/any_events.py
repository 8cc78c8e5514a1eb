"""CloudEvents of every kind for the tests: strategies that draw them, the smallest ones, and the check of a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import strategies as st

from sie_sdk.errors import InvalidInputError

# What the specification's String allows.
NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)] + [
    chr(p << 16 | c) for p in range(17) for c in (0xFFFE, 0xFFFF)
]
strings = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters=NONCHARACTERS), min_size=1)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.datetimes(timezones=offsets)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings,
    lambda inner: st.lists(inner) | st.dictionaries(strings, inner),
    max_leaves=8,
)
payloads = st.one_of(
    st.tuples(st.just("application/json"), json_values.map(lambda value: json.dumps(value).encode())),
    st.tuples(st.sampled_from(["application/msgpack", "text/plain", "a/b; c=d"]), st.binary(min_size=1)),
    st.tuples(st.sampled_from(["application/json", "application/vnd.x+json", None]), st.binary(min_size=1)),
    st.tuples(st.none() | st.just("application/msgpack"), st.none()),
)

TAKEN = {"id", "source", "type", "specversion", "time", "subject", "dataschema", "datacontenttype", "data"}


@st.composite
def events(draw: st.DrawFn, values: st.SearchStrategy[Any] = strings) -> CloudEvent:
    media_type, data = draw(payloads)
    extensions = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(lambda name: name not in TAKEN)
    attributes: dict[str, Any] = draw(st.dictionaries(extensions, values, max_size=4))
    attributes |= {"id": draw(strings), "source": draw(strings), "type": draw(strings), "time": draw(times)}
    for name in ("subject", "dataschema"):
        if draw(st.booleans()):
            attributes[name] = draw(strings)
    if media_type is not None:
        attributes["datacontenttype"] = media_type
    return CloudEvent(attributes, data)


def parts(event: CloudEvent) -> tuple[dict[str, Any], object]:
    return event.get_attributes(), event.get_data()


def minimal(**attributes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"} | attributes


def headers(**attributes: str) -> dict[str, str]:
    return {f"ce-{name}": value for name, value in minimal(**attributes).items()}


def refused(read: Callable[[], object], field: str) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as refusal:
        read()
    assert refusal.value.field == field
    return refusal.value
