"""Any event goes over NATS and HTTP and comes back the same; anything else is refused by name, whatever the bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import nats
import pytest
from cloudevents.core.bindings import http as package
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.events import envelope
from sie_broker.events.binding import from_http, from_nats, to_http, to_nats
from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_broker.records import Lane, Reply, Work
from sie_sdk.errors import InvalidInputError, UnsupportedMediaTypeError
from tests.broker.any_events import events, headers, json_values, minimal, parts, refused, strings

# -- round trips -------------------------------------------------------------------------------------------------------


@given(events(), st.booleans())
def test_an_event_comes_back_from_nats_as_it_went(event: CloudEvent, structured: bool) -> None:
    assert parts(from_nats(*to_nats(event, structured))) == parts(event)


@given(events(), st.booleans())
def test_an_event_comes_back_from_http_as_it_went(event: CloudEvent, structured: bool) -> None:
    (read,) = from_http(*to_http(event, structured))
    assert parts(read) == parts(event)


@given(events(strings | st.booleans() | st.integers(-(2**31), 2**31 - 1)))
def test_json_keeps_booleans_and_integers_and_headers_hold_their_canonical_text(event: CloudEvent) -> None:
    assert parts(from_nats(*to_nats(event, structured=True))) == parts(event)
    sent, _ = to_nats(event)
    for name, value in event.get_attributes().items():
        if isinstance(value, bool):
            assert sent[f"ce-{name}"] == str(value).lower()
        elif isinstance(value, int):
            assert sent[f"ce-{name}"] == str(value)


@given(events())
def test_headers_are_lower_case_visible_ascii_without_quotes(event: CloudEvent) -> None:
    for name, value in to_nats(event)[0].items():
        assert re.fullmatch(r"ce-[a-z0-9]+", name)
        assert re.fullmatch(r"[\x21\x23-\x7e]*", value)
    for value in to_http(event)[0].values():
        assert re.fullmatch(r"[\x20\x21\x23-\x7e]*", value)


@given(events())
def test_writing_leaves_the_event_as_it_is(event: CloudEvent) -> None:
    before = dict(event.get_attributes())
    for structured in (True, False):
        to_nats(event, structured)
        to_http(event, structured)
    assert event.get_attributes() == before


@given(st.lists(events(), max_size=4))
def test_a_batch_is_read_event_by_event(batch: list[CloudEvent]) -> None:
    body = b"[" + b",".join(to_http(event, structured=True)[1] for event in batch) + b"]"
    read = from_http({"content-type": f"{BATCH}; charset=utf-8"}, body)
    assert [parts(event) for event in read] == [parts(event) for event in batch]


async def test_a_real_server_carries_every_header_and_body(nats_url: str) -> None:
    attributes = minimal(
        time=datetime(2026, 1, 2, 3, 4, 5, 678, UTC), subject='Euro € 😀 "100%"', datacontenttype="a/b"
    )
    event = CloudEvent(attributes, bytes(range(256)))
    client = await nats.connect(nats_url)
    inbox = await client.subscribe("events")
    for structured in (False, True):
        sent, body = to_nats(event, structured)
        await client.publish("events", body, headers=sent)
        message = await inbox.next_msg(timeout=10)
        assert parts(from_nats(message.headers, message.data)) == parts(event)
    await client.close()


# -- whatever bytes come -----------------------------------------------------------------------------------------------

core_names = [
    "ce-id",
    "CE-Source",
    "ce-type",
    "ce-specversion",
    "ce-time",
    "ce-datacontenttype",
    "ce-data",
    "Content-Type",
]
any_headers = st.dictionaries(
    st.sampled_from(core_names) | st.text(max_size=8).map("ce-{}".format) | st.text(max_size=8),
    st.sampled_from(["1.0", STRUCTURED, BATCH, "application/json", "%C0", '"', "2026-01-01T00:00:00Z"]) | st.text(),
)
any_members = st.dictionaries(
    st.sampled_from(["specversion", "id", "source", "type", "time", "datacontenttype", "data", "data_base64"])
    | strings,
    st.sampled_from(["1.0", "application/json", "2026-01-01T00:00:00Z"]) | json_values,
)
complete = any_members.map(lambda members: members | minimal())
any_bodies = st.one_of(
    st.binary(),
    any_members.map(msgspec.json.encode),
    complete.map(msgspec.json.encode),
    st.lists(any_members | complete | json_values, max_size=3).map(msgspec.json.encode),
)


@given(any_headers | any_headers.map(lambda given: given | headers()), any_bodies)
def test_any_message_is_read_or_refused_with_a_field_and_a_reason_that_can_be_sent(
    given: Mapping[str, str], body: bytes
) -> None:
    for read in (from_nats, from_http):
        try:
            read(given, body)
        except InvalidInputError as refusal:
            assert refusal.field
            msgspec.json.encode(refusal.to_wire())


@given(any_bodies)
def test_any_body_that_says_it_is_json_is_read_or_refused(body: bytes) -> None:
    for media_type in (STRUCTURED, BATCH):
        try:
            from_http({"Content-Type": media_type}, body)
        except InvalidInputError as refusal:
            assert refusal.field
            msgspec.json.encode(refusal.to_wire())


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
@pytest.mark.parametrize(
    "value", [STRUCTURED, "Application/CloudEvents+JSON; charset=UTF-8", "application/cloudevents"]
)
def test_a_content_type_says_structured_also_beside_stray_headers(name: str, value: str) -> None:
    body = msgspec.json.encode(minimal(data={"a": 1}))
    stray = {name: value, "ce-x": "stray", "ce-specversion": "1.0", "ce-id": "other"}
    assert from_nats(stray, body).get_id() == "1"
    assert from_http(stray, body)[0].get_id() == "1"


@pytest.mark.parametrize("stray", [None, {}, {"Nats-Msg-Id": "7"}, {"ce-x": "stray"}])
def test_json_without_any_header_is_structured_as_go_senders_do(stray: dict[str, str] | None) -> None:
    event = from_nats(stray, msgspec.json.encode(minimal(data=[1, {"a": 2}])))
    assert (event.get_data(), event.get_datacontenttype()) == (b'[1,{"a":2}]', "application/json")


def test_header_names_are_read_in_any_casing() -> None:
    given = {name.upper(): value for name, value in headers(model="m").items()}
    assert from_nats(given, b"").get_extension("model") == "m"
    assert from_http(given, b"")[0].get_extension("model") == "m"


def test_http_has_the_media_type_in_its_own_header_and_nats_beside_the_others() -> None:
    event = CloudEvent(minimal(datacontenttype="application/msgpack"), b"\x05")
    assert to_http(event)[0]["content-type"] == to_nats(event)[0]["ce-datacontenttype"] == "application/msgpack"
    assert "ce-datacontenttype" not in to_http(event)[0]
    assert "Content-Type" not in to_nats(event)[0]
    assert from_nats(headers() | {"Content-Type": "application/msgpack"}, b"\x05").get_datacontenttype() is not None


def test_data_that_is_itself_an_event_travels_structured_over_http() -> None:
    event = CloudEvent(minimal(datacontenttype=STRUCTURED), msgspec.json.encode(minimal(id="inner")))
    for structured in (True, False):
        (read,) = from_http(*to_http(event, structured))
        assert parts(read) == (event.get_attributes() | {"time": event.get_time()}, event.get_data())


def test_nats_carries_no_batch_and_says_so() -> None:
    refusal = refused(lambda: from_nats({"content-type": BATCH}, b"[]"), "Content-Type")
    assert "batch" in refusal.message and "its own message" in str(refusal)


def test_an_event_format_that_is_not_json_is_refused() -> None:
    for read in (from_nats, from_http):
        with pytest.raises(UnsupportedMediaTypeError):
            read({"Content-Type": "application/cloudevents+avro"}, b"")


# -- the specification's examples --------------------------------------------------------------------------------------

EURO = "Euro%20%E2%82%AC%20%F0%9F%98%80"  # section 3.1.3.2 of both bindings


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (EURO, "Euro € 😀"),
        (EURO.lower(), "euro € 😀"),
        ("Euro € 😀", "Euro € 😀"),  # Go does not encode
        ("%41bc", "Abc"),  # needlessly encoded must be accepted
        ("%2541", "%41"),  # a single round of decoding
        ("100%", "100%"),
        ('"a \\"b\\" c"', 'a "b" c'),  # quotes of older senders
        ("  a  ", "a"),
    ],
)
def test_header_values_are_decoded_as_the_specification_says(sent: str, value: str) -> None:
    assert from_nats(headers(subject=sent), b"").get_subject() == value
    assert from_http(headers(subject=sent), b"")[0].get_subject() == value


def test_header_values_are_encoded_as_the_specification_says() -> None:
    assert to_nats(CloudEvent(minimal(subject="Euro € 😀"), None))[0]["ce-subject"] == EURO


@pytest.mark.parametrize("sent", ["%C0%A0", "%FF", "%ED%A0%80"])
def test_escapes_that_are_no_utf_8_are_refused(sent: str) -> None:
    refused(lambda: from_nats(headers(subject=sent), b""), "ce-subject")


# -- the package -----------------------------------------------------------------------------------------------------


@given(events())
def test_the_package_reads_what_is_written_here(event: CloudEvent) -> None:
    sent, body = to_http(event)
    read = package.from_binary_event(package.HTTPMessage(sent, body))
    assert read.get_attributes() == event.get_attributes()


@given(events(), st.booleans())
def test_what_the_package_writes_is_read_here(event: CloudEvent, structured: bool) -> None:
    message = package.to_structured_event(event) if structured else package.to_binary_event(event)
    (read,) = from_http(message.headers, message.body)
    assert parts(read) == parts(event)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["id", "source", "type", "specversion"])
def test_a_missing_attribute_is_named_as_it_would_have_been_sent(missing: str) -> None:
    given = headers()
    del given[f"ce-{missing}"]
    refused(lambda: from_nats(given, b"\x80"), f"ce-{missing}")
    refused(lambda: from_http(given, b""), f"ce-{missing}")
    members = minimal()
    del members[missing]
    body = msgspec.json.encode(members)
    refused(lambda: from_nats({}, body), missing)
    refused(lambda: from_http({"Content-Type": STRUCTURED}, body), missing)
    batch = b"[" + msgspec.json.encode(minimal()) + b"," + body + b"]"
    refused(lambda: from_http({"Content-Type": BATCH}, batch), f"[1].{missing}")


def test_an_attribute_given_twice_is_refused() -> None:
    refused(lambda: from_nats(headers() | {"CE-ID": "2"}, b""), "ce-id")


# -- the hot path ------------------------------------------------------------------------------------------------------

short = strings.map(lambda text: text[:20])  # what becomes part of a subject
# A character may take twelve of a header: four bytes, three of its characters each.
reply_places = strings.map(lambda text: text[: envelope.LONGEST_REPLY_TO // 12])
clean_lanes = st.builds(Lane, pool=short, bundle=short, profile=short)
stamps = st.integers(0, 4_102_444_800_000_000).map(lambda micros: micros / 1e6)


@given(
    st.builds(
        Work,
        id=short,
        op=st.sampled_from(["encode", "score", "extract"]),
        lane=clean_lanes,
        model=short,
        data=st.binary(max_size=100),
        time=stamps,
        reply_to=st.none() | reply_places,
        deadline=st.none() | stamps,
        traceparent=st.none() | strings,
    )
)
def test_the_hot_path_s_work_is_an_event_and_back(work: Work) -> None:
    event = from_nats(*envelope.from_work(work, source="/ingress/i"))
    assert (event.get_id(), event.get_source(), event.get_type()) == (work.id, "/ingress/i", f"dev.sie.{work.op}.v1")
    assert (event.get_extension("model"), event.get_data()) == (work.model, work.data or None)
    assert envelope.to_work(*to_nats(event)) == work


@given(
    st.builds(
        Reply,
        id=strings,
        data=st.binary(max_size=100),
        status=st.integers(200, 599),
        worker=st.from_regex(r"[ -~]{0,60}", fullmatch=True),
    )
)
def test_the_hot_path_s_reply_is_an_event_and_back(reply: Reply) -> None:
    event = from_nats(*envelope.from_reply(reply))
    assert (event.get_id(), event.get_type()) == (reply.id, "dev.sie.result.v1")
    assert envelope.to_reply(*to_nats(event)) == reply


def test_the_hot_path_does_not_import_the_package() -> None:
    code = "import sys, sie_broker.jetstream.nats_broker, sie_bundle.worker; assert 'cloudevents' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
