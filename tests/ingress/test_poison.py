"""Events on NATS that are meant to break something, or that nobody thought of: each ends, and the ingress goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sie_broker.events import binding
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.records import MAX_DELIVERIES
from tests.ingress.any_producer import TRACE, Office, event, lengths, office
from tests.ingress.nats_wire import Wire, connected
from tests.ingress.test_intake import on_nats, result, send, taking_in, until_settled

LONG = 3_000_000
HEADERS, BODY = on_nats(event())
LINES = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode()
MANY = {f"x-{number}": "y" * 1000 for number in range(64)}
"""As many headers as JetStream takes: a dead letter of them would have more."""


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
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


async def goes_on(at: Office, broker: NatsBroker, producer: Wire, settled: int = 1) -> None:
    """Assert that nothing is left in the queue of events, and that one more is served over the same connection."""
    await until_settled(broker, settled)
    async with at.desk.worker():
        await send(producer, event("another"))
        assert lengths(await result(at, b"\n/producer\nanother")) == [4]
    await until_settled(broker, settled + 1)
    assert (broker.nc.is_connected, broker.nc.stats["reconnects"]) == (True, 0)


@pytest.mark.parametrize(
    "name", ["id", "source", "type", "model", "tenant", "pool", "priority", "replyto", "operation"]
)
async def test_an_attribute_of_megabytes_is_refused(at: Office, broker: NatsBroker, producer: Wire, name: str) -> None:
    await producer.publish("sie.events.encode", json.dumps(event(**{name: "é" * LONG}), ensure_ascii=False).encode())
    await goes_on(at, broker, producer)


async def test_a_trace_that_is_too_long_is_left_out(at: Office, broker: NatsBroker, producer: Wire) -> None:
    await producer.publish("sie.events.encode", json.dumps(event(traceparent=f"01{TRACE[2:]}-{'x' * LONG}")).encode())
    async with at.desk.worker():
        assert lengths(await result(at)) == [4]
    await goes_on(at, broker, producer)


async def test_an_event_that_expires_after_the_last_year_is_served(
    at: Office, broker: NatsBroker, producer: Wire
) -> None:
    await send(producer, event(expirytime="9999-12-31T23:59:59-14:00"))
    async with at.desk.worker():
        assert lengths(await result(at)) == [4]
    await goes_on(at, broker, producer)


async def test_who_sent_an_id_that_is_too_long_is_told_at_its_inbox(
    at: Office, broker: NatsBroker, producer: Wire
) -> None:
    await producer.subscribe("_INBOX.wire.*")
    await send(producer, event("x" * 50_000, replyto="nats:_INBOX.wire.1"))
    answer = await producer.next_message()
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["limit"]) == ("INVALID_INPUT", "ce-id", 256)
    assert "causationid" not in binding.from_nats(answer.headers, answer.body).get_attributes()
    await goes_on(at, broker, producer)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (MANY, b"no event"),
        ({}, b"x" * (MAX_PAYLOAD_BYTES - 100)),
        (MANY, b"x" * (MAX_PAYLOAD_BYTES - 66_000)),
        ({"x(y)": "a name that nats-py does not send"}, b"no event"),
        ({"Nats-Expected-Stream": "EVENTS"}, b"no event"),
        ({"sie-dead-id": "another", "sie-dead-at": "never"}, b"no event"),
        ({"ce-specversion": "1.0", "ce-id": "%ff"}, b""),
    ],
    ids=["headers", "body", "both", "name", "expectation", "ours", "escape"],
)
async def test_what_is_no_event_is_a_dead_letter_however_it_fills_its_message(
    at: Office, broker: NatsBroker, producer: Wire, headers: dict[str, str], body: bytes
) -> None:
    await producer.publish("sie.events.encode", body, headers)
    await until_settled(broker)
    (letter,) = await broker.dead.entries()
    assert (letter.id, letter.reason, letter.size) == ("event-1", "malformed", len(body))
    await goes_on(at, broker, producer)


@pytest.mark.parametrize(
    ("to", "block", "served"),
    [
        (b"sie.events.encode", b"NATS/1.0 404 Not Found\r\n" + LINES + b"\r\n", False),
        (b"sie.events.encode", b"NATS/1.0 \xff\xff\xff\r\n" + LINES + b"\r\n", False),
        (b"sie.events.encode", b"NATS/1.0\r\nStatus: 408\r\n" + LINES + b"\r\n", True),
        (b"sie.events.encode", b"NATS/1.0\r\nStatus: 100\r\n" + LINES + b"\r\n", True),
        (b"sie.events.\xff\xfe", b"NATS/1.0\r\n" + LINES + b"\r\n", True),
        (b"sie.events.encode", b"NATS/1.0\r\n\xff\xff: \xff\r\n" + LINES + b"\r\n", True),
        (b"sie.events.encode", b"NATS/1.0\r\n\r\n", False),
        (b"sie.events.encode", b"NATS/1.0", False),
        (b"sie.events.encode", b"\r\n", False),
    ],
)
async def test_what_looks_like_the_servers_own_word_or_cannot_be_decoded_is_settled(
    at: Office, broker: NatsBroker, producer: Wire, to: bytes, block: bytes, served: bool
) -> None:
    await producer.publish_block(to, block, BODY)
    await until_settled(broker)
    if served:
        async with at.desk.worker():
            assert lengths(await result(at)) == [4]
    await goes_on(at, broker, producer)


async def test_an_event_over_which_ingress_after_ingress_stumbles_is_a_dead_letter(
    broker: NatsBroker, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_broker.parcel.ACK_WAIT_S", 0.2)
    async with office(broker) as at, connected(nats_url) as producer:
        requests = at.desk.ingress.state.event_requests
        check = requests.check

        async def stumbles(event: Any, *rest: Any) -> Any:
            if event.get_id() == "e 1":
                raise RuntimeError("Nobody thought of this.")
            return await check(event, *rest)

        monkeypatch.setattr(requests, "check", stumbles)
        async with taking_in(broker, at):
            await send(producer, event())
            await until_settled(broker)
            (letter,) = await broker.dead.entries()
            assert (letter.id, letter.reason, letter.deliveries) == ("event-1", "exhausted", MAX_DELIVERIES)
            assert "Nobody thought of this." in letter.fault
            await goes_on(at, broker, producer)
