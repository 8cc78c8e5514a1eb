"""docs/events.md and docs/schemas say what really travels: examples, schemas, parsers and real messages agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cloudevents.core.v1.event import CloudEvent
from jsonschema import Draft202012Validator

from sie_broker import subjects
from sie_broker.demand.sessions import event_headers
from sie_broker.events import envelope
from sie_broker.events.binding import from_http, from_nats, to_nats
from sie_broker.events.event_format import STRUCTURED
from sie_broker.events.exchange import OPERATIONS
from sie_broker.records import Lane, Reply, Work
from sie_config.epochs import changed_event
from sie_sdk import refusals, replies, wire
from sie_sdk.errors import InputTooLongError
from sie_sdk.outputs import DenseOutput, MultivectorOutput, Outputs, SparseOutput
from sie_sdk.types import Timing, Usage
from tests.broker.event_schemas import FOLDER, schemas, text
from tests.bundle.test_door import Bundle
from tests.ingress.conftest import MODEL

PAGE = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text()
SCHEMAS = schemas()
EXAMPLES = re.findall(r"(?ms)^```json\n(.*?)^```", PAGE)


def check(event: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMAS[event["type"]]).validate(event)


def as_json(event: CloudEvent) -> dict[str, Any]:
    """The event as its schema describes it."""
    members: dict[str, Any] = json.loads(to_nats(event, structured=True)[1])
    return members


# -- the files and the page --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_file_is_what_the_records_say(kind: str) -> None:
    # python -m tests.broker.event_schemas writes them anew.
    assert (FOLDER / f"{kind}.json").read_bytes() == text(SCHEMAS[kind])
    Draft202012Validator.check_schema(SCHEMAS[kind])


def test_there_is_no_other_schema_file_and_every_type_has_a_section_with_its_schema_and_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("dev.*")} == set(SCHEMAS)
    assert set(OPERATIONS) < set(SCHEMAS)
    for kind in SCHEMAS:
        (section,) = re.findall(rf"(?ms)^## {re.escape(kind)}\n(.*?)(?=^## |\Z)", PAGE)
        assert f"(schemas/{kind}.json)" in section
        assert f'"type": "{kind}"' in section


def test_every_attribute_of_a_schema_is_explained() -> None:
    explained = {name for row in re.findall(r"(?m)^\| (`.*?`) \|", PAGE) for name in re.findall(r"`([a-z]+)`", row)}
    for schema in SCHEMAS.values():
        assert schema["properties"].keys() - {"data", "data_base64"} <= explained


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_an_event_of_its_schema_and_is_read(example: str) -> None:
    check(json.loads(example))
    event = from_nats({"Content-Type": STRUCTURED}, example.encode())
    check(as_json(event))
    data = event.get_data()
    if operation := OPERATIONS.get(event.get_type()):
        assert isinstance(data, bytes)
        assert wire.PARSERS[operation](data, event.get_datacontenttype())


def test_the_message_on_the_queue_is_read_as_work_of_its_subject() -> None:
    (message,) = re.findall(r"(?ms)^```nats\n(.*?)^```", PAGE)
    headers = dict(line.split(": ", 1) for line in message.splitlines())
    body = wire.request_body(wire.parse_encode(b'{"items": [{"text": "a"}]}', wire.JSON))
    work = envelope.to_work(headers, body)
    assert (headers["Subject"], headers["Nats-Msg-Id"]) == (subjects.work(work.queue), work.id)
    assert work.reply_to == subjects.reply("ingress-1", work.id)
    check(as_json(from_nats(headers, body)))


async def test_the_curl_example_of_a_bundle_is_answered_with_a_result() -> None:
    (command,) = re.findall(r"(?ms)^(curl \S+:9000/ .*?)^```", PAGE)
    headers = dict(header.split(": ", 1) for header in re.findall(r"-H '(.*?)'", command))
    (body,) = re.findall(r"-d '(.*?)'", command)
    check(as_json(*from_http(headers, body.encode())))
    bundle = Bundle()
    answer = await bundle.client.post("/", headers=headers | {"ce-model": MODEL}, content=body.encode())
    check(result_of(answer))


# -- what really travels -----------------------------------------------------------------------------------------------


def result_of(answer: httpx.Response) -> dict[str, Any]:
    (event,) = from_http(answer.headers, answer.content)
    return as_json(event)


def test_work_as_the_ingress_sends_it_follows_its_schema_which_lists_all_its_attributes() -> None:
    work = Work(
        id="i",
        op="encode",
        lane=Lane(pool="p", bundle="b", profile="c"),
        model="m",
        data=wire.request_body(wire.parse_encode(b'{"items": [{"text": "a"}]}', wire.JSON)),
        time=1.5,
        reply_to="sie.reply.a.i",
        deadline=2.5,
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        tenant="t",
        cause="c",
    )
    event = as_json(from_nats(*envelope.from_work(work, "/ingress/i")))
    check(event)
    assert event.keys() <= SCHEMAS[event["type"]]["properties"].keys()


def test_what_travels_with_a_reference_to_its_data_follows_its_schema_too() -> None:
    dataref = "nats:sie_payloads/i/0123456789abcdef?bytes=20971520&chunk=524288&crc32=0badcafe"
    lane = Lane(pool="p", bundle="b", profile="c")
    work = Work(id="i", op="encode", lane=lane, model="m", data=b"", time=1.5, dataref=dataref)
    for message in (envelope.from_work(work, "/i"), envelope.from_reply(Reply(id="i", data=b"", dataref=dataref))):
        event = as_json(from_nats(*message))
        check(event)
        assert event["dataref"] == dataref


def result_bodies() -> list[bytes]:
    matrix = np.array([[0.5, -1.5]], np.float32)
    dense = DenseOutput(matrix.astype(np.int8), 2, "int8", scale=np.ones(1, np.float32))
    sparse = SparseOutput([(np.array([3], np.int32), np.array([0.5], np.float32))], 10, "float32")
    tokens = MultivectorOutput([matrix], 2, "float32")
    outputs: Outputs = {"dense": dense, "sparse": sparse, "multivector": tokens}
    return [
        replies.encode("m", ["a"], outputs, Timing(), Usage()),
        replies.score("m", np.ones(2, np.float32), ["a", None], "q", Timing(), Usage()),
        replies.extract("m", [None], [replies.Extracted()], Timing(), Usage()),
    ]


@pytest.mark.parametrize("body", result_bodies(), ids=["encode", "score", "extract"])
def test_a_result_follows_its_schema_in_msgpack_and_in_json(body: bytes) -> None:
    for data, media_type in ((body, wire.MSGPACK), (replies.to_json(body), wire.JSON)):
        headers, _ = envelope.from_reply(Reply(id="i", data=data, worker="w", cause="c"))
        event = as_json(from_nats(headers | {"ce-datacontenttype": media_type}, data))
        check(event)
        assert ("data" in event) == (media_type == wire.JSON)
        assert event.keys() <= SCHEMAS[event["type"]]["properties"].keys()


def test_a_failure_is_a_result_in_json_and_says_so() -> None:
    failure = InputTooLongError("Too long.", field="items[0].text", limit=512)
    reply = Reply(id="i", data=refusals.error_body(failure), status=failure.status, worker="w")
    event = as_json(from_nats(*envelope.from_reply(reply)))
    check(event)
    assert event["data"]["error"]["param"] == "items[0].text"


async def test_a_session_and_its_answer_follow_their_schemas() -> None:
    opened = event_headers(Lane(pool="p", bundle="b", profile="c"), hold_until=1.0)
    (event,) = from_http(opened, b"")
    check(as_json(event))
    check(result_of(await Bundle().client.post("/", headers=opened)))


def test_nothing_else_passes_for_an_event() -> None:
    for kind, schema in SCHEMAS.items():
        valid = Draft202012Validator(schema).is_valid
        assert not valid({"specversion": "1.0", "id": "1", "source": "/s", "type": kind, "data": {}})
        assert not valid({"specversion": "1.0", "id": "1", "source": "/s", "type": "other"})
    assert changed_event.TYPE in SCHEMAS
