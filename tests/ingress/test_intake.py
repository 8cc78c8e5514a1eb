"""Any producer can put an event on NATS, with nothing but the protocol, and lose nothing; on a real nats-server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from sie_broker.events import binding
from sie_broker.jetstream import parcels
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import EVENTS
from sie_broker.records import Work
from sie_ingress.intake import Intake
from sie_sdk import results, wire
from sie_sdk.errors import QueueFullError
from sie_sdk.types import EncodeRequest, Item
from tests.conftest import eventually
from tests.ingress.any_producer import TRACE, Office, binary, event, examples, lengths, office, until_queued
from tests.ingress.nats_wire import Wire, connected

SUBJECT = "sie.events.encode"


@asynccontextmanager
async def taking_in(broker: NatsBroker, at: Office) -> AsyncIterator[None]:
    task = asyncio.create_task(Intake(broker, broker.arrivals, at.desk.ingress.state.event_requests).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:  # instead of one of each kind
    broker = NatsBroker(nats_url, "test")
    await broker.connect()
    yield broker
    await broker.close()


@pytest.fixture
async def at(broker: NatsBroker) -> AsyncIterator[Office]:
    async with office(broker) as opened, taking_in(broker, opened):
        yield opened


@pytest.fixture
async def producer(nats_url: str, at: Office) -> AsyncIterator[Wire]:
    async with connected(nats_url) as opened:
        yield opened


def on_nats(structured: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    headers, body = binary(structured)
    if (media := headers.pop("Content-Type", None)) is not None:
        headers["ce-datacontenttype"] = media
    return headers, body


async def send(producer: Wire, structured: dict[str, Any]) -> None:
    """In binary mode."""
    headers, body = on_nats(structured)
    await producer.publish(SUBJECT, body, headers)


async def result(at: Office, identity: bytes = b"\n/producer\ne 1") -> httpx.Response:
    """What the job of an event says, once it is there."""
    job = hashlib.sha256(identity).hexdigest()[:32]
    end = time.monotonic() + 10
    while True:
        answer = await at.desk.client.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=5"})
        if answer.json().get("error", {}).get("code") != "JOB_NOT_FOUND":
            return answer
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def left(broker: NatsBroker) -> int:
    """Events in the queue that nobody has acknowledged."""
    return int((await broker.nc.jetstream().stream_info(EVENTS)).state.messages)


async def until_settled(broker: NatsBroker, count: int = 1) -> None:
    """Return when so many events have come and none is left."""
    end = time.monotonic() + 10
    while True:
        state = (await broker.nc.jetstream().stream_info(EVENTS)).state
        if state.last_seq == count and state.messages == 0:
            return
        assert time.monotonic() < end, state
        await asyncio.sleep(0.01)


PACKED = wire.request_body(EncodeRequest([Item(text="four")]))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        on_nats(event()),
        on_nats(event(datacontenttype=None)),
        ({"Content-Type": "application/cloudevents+json"}, json.dumps(event()).encode()),
        (None, json.dumps(event()).encode()),
    ],
    ids=["binary", "binary without a type", "structured", "structured without headers"],
)
async def test_an_event_that_is_published_is_computed_and_its_job_has_the_result(
    at: Office, broker: NatsBroker, producer: Wire, headers: dict[str, str] | None, body: bytes
) -> None:
    await producer.publish(SUBJECT, body, headers)
    async with at.desk.worker():
        assert lengths(await result(at)) == [4]
    await until_settled(broker)
    assert len(at.desk.computed) == 1


async def test_a_request_is_answered_with_the_receipt_of_the_event(at: Office, producer: Wire) -> None:
    headers, body = on_nats(event())
    receipt = await producer.request(SUBJECT, body, headers)
    assert receipt.json() == {"stream": EVENTS, "seq": 1}
    async with at.desk.worker():
        assert lengths(await result(at)) == [4]


@pytest.mark.parametrize("packed", [False, True])
async def test_the_answer_comes_to_the_inbox_that_the_event_names(at: Office, producer: Wire, packed: bool) -> None:
    await producer.subscribe("_INBOX.wire.*")
    headers, body = on_nats(event(replyto="nats:_INBOX.wire.7", traceparent=TRACE))
    if packed:
        headers, body = headers | {"ce-datacontenttype": wire.MSGPACK}, PACKED
    async with at.desk.worker():
        await producer.publish(SUBJECT, body, headers)
        message = await producer.next_message()
    answer = binding.from_nats(message.headers, message.body)
    assert message.subject == "_INBOX.wire.7"
    said = answer.get_attributes()
    assert (said["causationid"], said["status"], said["traceparent"]) == ("e 1", "200", TRACE)
    if packed:
        (item,) = results.read_encode(message.body)
        assert item.dense is not None and item.dense.tolist() == [4, 1]
    else:
        assert message.json()["items"][0]["dense"]["values"] == [4, 1]
    assert (await result(at)).status_code == 200


async def test_the_answer_goes_to_a_url_as_well(at: Office, producer: Wire) -> None:
    async with at.desk.worker():
        await send(producer, event(replyto=f"{at.sink.url}/in"))
        await eventually(lambda: bool(at.sink.accepted))
    assert at.sink.received[0].headers["ce-causationid"] == "e%201"


async def test_an_event_that_is_published_again_or_posted_as_well_is_one_job(
    at: Office, broker: NatsBroker, producer: Wire
) -> None:
    for _ in range(3):
        await send(producer, event())
    posted = await at.post(event())
    await until_settled(broker, 3)
    async with at.desk.worker():
        assert lengths(await at.job(posted)) == lengths(await result(at)) == [4]
        await send(producer, event())
        await until_settled(broker, 4)
    assert len(at.desk.computed) == 1


@pytest.mark.parametrize(
    ("wrong", "code", "field"),
    [
        ({"model": "org/nothing"}, "MODEL_NOT_FOUND", "ce-model"),
        ({"type": "dev.sie.invent.v1"}, "INVALID_INPUT", "ce-type"),
        ({"data": {"items": []}}, "INVALID_INPUT", "items"),
        ({"expirytime": "2020-01-01T00:00:00Z"}, "DEADLINE_EXCEEDED", "ce-expirytime"),
        ({"priority": "urgent"}, "INVALID_INPUT", "ce-priority"),
    ],
)
async def test_what_cannot_be_served_is_answered_where_the_result_was_awaited_and_at_the_job(
    at: Office, broker: NatsBroker, producer: Wire, wrong: dict[str, Any], code: str, field: str
) -> None:
    await producer.subscribe("_INBOX.wire.*")
    await send(producer, event(replyto="nats:_INBOX.wire.1", **wrong))
    message = await producer.next_message()
    assert int(message.headers["ce-status"]) >= 400
    assert message.headers["ce-causationid"] == "e%201"
    error = message.json()["error"]
    assert (error["code"], error["param"]) == (code, field)
    assert (await result(at)).json()["error"] == error
    await until_settled(broker)
    assert await at.queued() == 0


async def test_an_event_expires_by_the_deployments_clock_and_not_by_this_machines(
    at: Office, broker: NatsBroker, producer: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 300)
    expiry = datetime.fromtimestamp(now() + 60, UTC)
    await send(producer, event(expirytime=expiry.isoformat()))
    await until_settled(broker)
    assert await at.queued() == 1


@pytest.mark.parametrize("to", ["http://169.254.169.254/", "nats:sie.work.x", "nats:$JS.API.INFO", "elsewhere"])
async def test_nothing_is_sent_where_it_may_not_not_even_the_refusal(
    at: Office, broker: NatsBroker, producer: Wire, to: str
) -> None:
    await send(producer, event(replyto=to))
    answer = await result(at)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ce-replyto")
    assert await broker.dead.entries() == []


async def test_an_event_with_the_identity_of_another_does_not_touch_its_result(
    at: Office, broker: NatsBroker, producer: Wire
) -> None:
    async with at.desk.worker():
        await send(producer, event())
        assert lengths(await result(at)) == [4]
        for wrong in ({"data": {"items": [{"text": "other"}]}}, {"model": "org/nothing"}):
            await send(producer, event(**wrong))
        await until_settled(broker, 3)
        assert lengths(await result(at)) == [4]


@pytest.mark.parametrize(
    ("headers", "body"),
    [(None, b"hello"), ({"ce-specversion": "1.0", "ce-id": "1", "ce-replyto": "_INBOX.wire.1"}, b"{}"), (None, b"")],
)
async def test_what_is_no_event_is_a_dead_letter_and_told_to_nobody(
    at: Office, broker: NatsBroker, producer: Wire, headers: dict[str, str] | None, body: bytes
) -> None:
    await producer.publish(SUBJECT, body, headers)
    await until_settled(broker)
    (letter,) = await broker.dead.entries()
    assert (letter.id, letter.reason, letter.subject) == ("event-1", "malformed", SUBJECT)
    assert letter.fault
    assert await broker.jobs.entries() == {}
    await broker.dead.replay(letter.id)
    end = time.monotonic() + 10
    while [each.id for each in await broker.dead.entries()] != ["event-2"]:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_an_event_waits_in_its_queue_while_there_is_no_room_for_its_work(
    at: Office, broker: NatsBroker, producer: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()

    async def full(work: Work, after: int = 0) -> None:
        tried.set()
        raise QueueFullError("Full.", retry_after=0.1)

    monkeypatch.setattr(broker, "submit", full)
    await send(producer, event())
    await tried.wait()
    assert await left(broker) == 1
    monkeypatch.undo()
    async with at.desk.worker():
        assert lengths(await result(at)) == [4]
    await until_settled(broker)


async def test_an_event_whose_ingress_dies_before_it_acknowledges_comes_to_another_and_is_one_job(
    broker: NatsBroker, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_broker.parcel.ACK_WAIT_S", 1.0)
    monkeypatch.setattr("sie_broker.parcel.DRAIN_S", 0.0)
    async with office(broker) as at, connected(nats_url) as producer:
        monkeypatch.setattr(parcels.NatsParcel, "ack", lambda _: asyncio.Event().wait())
        async with taking_in(broker, at):
            await send(producer, event(replyto=f"{at.sink.url}/in"))
            await until_queued(at)
        monkeypatch.undo()
        assert await left(broker) == 1
        async with taking_in(broker, at), at.desk.worker():
            await until_settled(broker)
            await eventually(lambda: bool(at.sink.accepted))
    assert len(at.desk.computed) == 1


async def test_the_nats_commands_of_the_page_do_what_it_says(at: Office, broker: NatsBroker, producer: Wire) -> None:
    """The command line of NATS is read as it reads it; what it would send goes over the socket."""
    published, requested = [
        shlex.split(each.replace("\\\n", " ")) for each in [*examples("nats pub"), *examples("nats request")]
    ]
    async with at.desk.worker():
        await producer.subscribe("_INBOX.me")
        _, _, subject, *options, body = published
        assert set(options[::2]) == {"-H"}
        await producer.publish(subject, body.encode(), dict(option.split(":", 1) for option in options[1::2]))
        answer = binding.from_nats(*(await producer.next_message())[1:])
        assert answer.get_attributes()["causationid"] == "5"
        _, _, subject, body = requested
        receipt = await producer.request(subject, body.encode())
        assert receipt.json() == {"stream": EVENTS, "seq": 2}
        assert lengths(await result(at, b"\n/me\n6")) == [5]
