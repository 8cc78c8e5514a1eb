"""An event's attributes and data in JSON and as canonical text: the specification's examples, and refusals by name."""

from __future__ import annotations

import base64
import json
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import msgspec
import pytest
from cloudevents.core.v1.event import CloudEvent

from sie_broker.events.binding import from_http, from_nats, to_http, to_nats
from sie_broker.events.event_format import BATCH, MAX_ATTRIBUTES, MAX_BATCH, STRUCTURED
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError
from tests.broker.any_events import headers, minimal, refused

# -- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "media_type", "data"),
    [
        ({"datacontenttype": "application/x-thrift", "data_base64": "AP8="}, "application/x-thrift", b"\x00\xff"),
        ({"datacontenttype": "application/xml", "data": '<much wow="xml"/>'}, "application/xml", b'<much wow="xml"/>'),
        (
            {"datacontenttype": "application/json", "data": {"a": "abc", "b": True}},
            "application/json",
            b'{"a":"abc","b":true}',
        ),
        ({"data": "I'm just a string"}, "application/json", b'"I\'m just a string"'),
        ({"data": None}, "application/json", b"null"),
        ({"subject": None}, None, None),
    ],
)
def test_the_json_format_s_examples_become_binary_messages(
    members: dict[str, Any], media_type: str | None, data: bytes | None
) -> None:
    body = msgspec.json.encode(minimal(comexampleothervalue=5, unsetextension=None) | members)
    event = from_nats({"Content-Type": STRUCTURED}, body)
    sent, written = to_nats(event)
    assert (sent.get("ce-datacontenttype"), event.get_data(), written) == (media_type, data, data or b"")
    assert sent["ce-comexampleothervalue"] == "5"
    assert not {"ce-subject", "ce-unsetextension", "ce-time"} & sent.keys()


@pytest.mark.parametrize(
    ("data", "written"),
    [([1, {"a": 2}], b'[1,{"a":2}]'), ({"a": 1}, b'{"a":1}'), ("text", b'"text"'), (7, b"7"), (b"[1]", b"[1]")],
)
def test_json_data_is_written_as_json(data: Any, written: bytes) -> None:
    for event in (CloudEvent(minimal(), data), CloudEvent(minimal(datacontenttype="application/json"), data)):
        assert to_nats(event)[1] == to_http(event)[1] == written
        if not isinstance(data, bytes):
            assert to_nats(event)[0]["ce-datacontenttype"] == "application/json"
            assert json.loads(to_nats(event, structured=True)[1])["data"] == data


@pytest.mark.parametrize(
    ("media_type", "data"),
    [("application/msgpack", {"a": 1}), ("application/json", {"a": object()}), ("text/plain", "\ud800")],
)
def test_data_without_a_form_in_its_type_is_refused(media_type: str, data: Any) -> None:
    refused(lambda: to_nats(CloudEvent(minimal(datacontenttype=media_type), data)), "data")


def test_msgpack_that_happens_to_be_text_stays_bytes() -> None:
    sent = headers(datacontenttype="application/msgpack")
    assert from_nats(sent, b"\x05").get_data() == b"\x05"


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b"{", b"[" * 100_000, b" 1\n"])
def test_what_calls_itself_json_and_would_not_come_back_so_travels_in_base64(data: bytes) -> None:
    event = CloudEvent(minimal(datacontenttype="application/json"), data)
    body = to_nats(event, structured=True)[1]
    assert base64.b64decode(json.loads(body)["data_base64"]) == event.get_data()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (-3, "-3"),
        (b"\x00\xff", "AP8="),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (datetime(2026, 1, 2, 0, 0, 1, 5, timezone(timedelta(hours=-2))), "2026-01-02T00:00:01.000005-02:00"),
        (datetime(2026, 1, 2, 0, 1, tzinfo=timezone(timedelta(seconds=30))), "2026-01-02T00:00:30Z"),
    ],
)
def test_an_extension_s_value_is_written_in_canonical_form(value: Any, text: str) -> None:
    assert to_nats(CloudEvent(minimal(x=value), None))[0]["ce-x"] == text


@pytest.mark.parametrize("value", [1.5, 2**31, [1], datetime(2026, 1, 2), "a\nb", "\ufdd0", "\ud800"])
@pytest.mark.parametrize("structured", [True, False])
def test_an_extension_s_value_without_a_canonical_form_is_refused(value: Any, structured: bool) -> None:
    refused(lambda: to_http(CloudEvent(minimal(x=value), None), structured), "x")


def test_an_event_without_a_time_is_given_none() -> None:
    assert from_nats(headers(), b"").get_time() is None
    assert from_nats({}, msgspec.json.encode(minimal())).get_time() is None


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"data": 1, "data_base64": ""}, "data_base64"),
        ({"data_base64": "!"}, "data_base64"),
        ({"data_base64": 5}, "data_base64"),
        ({"datacontenttype": "text/plain", "data": {"a": 1}}, "data"),
        ({"datacontenttype": 5, "data": {"a": 1}}, "datacontenttype"),
        ({"id": 5}, "id"),
        ({"time": 5}, "time"),
        ({"x": 1.5}, "x"),
        ({"x": {"y": 1}}, "x"),
        ({"Upper": "x"}, "Upper"),
    ],
)
def test_wrong_json_names_its_member(members: dict[str, Any], field: str) -> None:
    refused(lambda: from_nats({"Content-Type": STRUCTURED}, msgspec.json.encode(minimal() | members)), field)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", ""),
        ("source", ""),
        ("type", ""),
        ("specversion", "0.3"),
        ("subject", ""),
        ("subject", "a%0D%0Ab"),
        ("time", "yesterday"),
        ("time", "2026-01-02"),
        ("time", "2026-01-02T03:04:05"),
        ("time", "2026-13-02T03:04:05Z"),
        ("time", "٢٠٢٦-01-02T03:04:05Z"),
        ("datacontenttype", "json"),
        ("datacontenttype", "a/b%0Ac"),
        ("data", "x"),
    ],
)
def test_a_wrong_attribute_is_named(name: str, value: str) -> None:
    refused(lambda: from_nats(headers(**{name: value}), b""), f"ce-{name}")


@pytest.mark.parametrize("name", ["ce-", "ce-a_b", "ce-a-b", "ce-é", "ce-a\n"])
def test_a_name_that_no_attribute_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="no attribute"):
        from_nats(headers() | {name: "x"}, b"")


@pytest.mark.parametrize("body", [b'{"data":' + b"[" * 100_000, b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"])
def test_deep_nesting_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        from_nats({"Content-Type": STRUCTURED}, body)


# -- what would become too much ----------------------------------------------------------------------------------------


def test_a_batch_of_too_many_events_is_refused_before_one_is_read() -> None:
    body = b"[" + b",".join([b"{}"] * (MAX_BATCH + 1)) + b"]"
    with pytest.raises(PayloadTooLargeError) as refusal:  # and not for the first, which lacks everything
        from_http({"Content-Type": BATCH}, body)
    assert (refusal.value.field, refusal.value.limit) == ("body", MAX_BATCH)


def refused_within(memory: int, media: str, body: bytes, field: str) -> None:
    """It is, and takes at most so many bytes for it."""
    tracemalloc.start()
    try:
        refused(lambda: from_http({"Content-Type": media}, body), field)
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


def many(number: int) -> bytes:
    return json.dumps(minimal(**{f"a{place}": "x" for place in range(number)})).encode()


def test_an_event_of_too_many_attributes_is_refused_and_a_batch_at_the_first_of_them() -> None:
    most = MAX_ATTRIBUTES - len(minimal())
    (event,) = from_http({"Content-Type": STRUCTURED}, many(most))
    assert len(event.get_attributes()) == MAX_ATTRIBUTES
    for body, field in ((many(most + 1), "body"), (b"[%b,%b,{}]" % (many(1), many(most + 1)), "[1]")):
        mode = BATCH if field == "[1]" else STRUCTURED
        refused(partial(from_http, {"Content-Type": mode}, body), field)
    in_binary_mode = headers(**{f"a{place}": "x" for place in range(MAX_ATTRIBUTES)})
    for read in (from_nats, from_http):
        refused(partial(read, in_binary_mode, b""), "headers")


def test_of_a_large_event_no_more_attributes_are_made_than_it_may_have() -> None:
    body = many(300_000)
    refused_within(2 * len(body), STRUCTURED, body, "body")


def test_a_large_event_is_read_like_any_other() -> None:
    text = json.dumps({"items": ["x" * (1 << 20)]}).encode()
    (event,) = from_http({"Content-Type": STRUCTURED}, many(9)[:-1] + b', "data": ' + text + b"}")
    assert (event.get_data(), event.get_attributes()["a8"]) == (text, "x")


@pytest.mark.parametrize("element", [b"0", b"{}"])
def test_a_batch_of_millions_of_anything_is_refused_at_the_first(element: bytes) -> None:
    body = b"[" + b",".join([element] * 1_000_000) + b"]"
    refused_within(2 * len(body), BATCH, body, "body")


@pytest.mark.parametrize("value", [b"[%b]", b'{"a": [%b]}'])
def test_lists_in_an_attribute_are_refused_without_being_made(value: bytes) -> None:
    body = json.dumps(minimal(x=0)).encode().replace(b'"x": 0', b'"x": ' + value % b",".join([b"[]"] * 500_000))
    refused_within(3 * len(body), STRUCTURED, body, "x")
