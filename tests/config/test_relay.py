"""Whoever is to hear of a write hears of it: in order, at least once, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from cloudevents.core.v1.event import CloudEvent

from sie_broker.contract import Broker
from sie_broker.events import binding
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_config.epochs import changed_event, relay
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.relay import Relay, Send
from sie_config.epochs.store import Change, Event, Stored
from sie_config.epochs.writer import Writer
from sie_config.registry import Registry
from sie_sdk.errors import ConfigurationError, QueueUnavailableError
from tests.broker.sink_double import SinkServer
from tests.config.test_two_writers import second_writer
from tests.config.test_writer import put
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other")


def data(event: CloudEvent) -> Any:
    written = event.get_data()
    assert isinstance(written, bytes)
    return msgspec.json.decode(written)


@asynccontextmanager
async def relaying(broker: Broker, writer: Writer, name: str, send: Send) -> AsyncIterator[Relay]:
    told = Relay(broker.config, writer, name, send)
    writer._mirror.listeners.append(told.heard)
    task = asyncio.create_task(told.run())
    try:
        yield told
    finally:
        writer._mirror.listeners.remove(told.heard)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def noted(relay: Relay, epoch: int) -> bool:
    return await relay._bucket.get(relay._key) == str(epoch).encode()


async def test_everybody_on_nats_hears_of_each_write_once_and_in_order(nats_url: str) -> None:
    broker = NatsBroker(nats_url, "config")
    await broker.connect()
    heard: list[tuple[str, CloudEvent]] = []

    async def on_message(message) -> None:  # type: ignore[no-untyped-def]  # nats-py's
        heard.append((message.subject, binding.from_nats(message.headers, message.data)))

    await broker.nc.subscribe("sie.config.changed.>", cb=on_message)
    async with writing(broker, SPEC) as writer, relaying(broker, writer, "nats", relay.on_nats(broker)):
        for length in range(2, 12):
            await put(writer, msgspec.structs.replace(OTHER, max_sequence_length=length))
        await put(writer, gone=(OTHER.id,))
        await eventually(lambda: len(heard) >= 12)
    assert [event.get_id() for _, event in heard] == [str(epoch) for epoch in range(1, 13)]
    assert [subject for subject, _ in heard] == ["sie.config.changed.seed"] + ["sie.config.changed.put"] * 11
    last = data(heard[2][1])
    assert last["changes"] == [
        {
            "model": "org/other",
            "action": "changed",
            "fields": [{"path": "max_sequence_length", "before": 2, "after": 3}],
            "etag_before": last["changes"][0]["etag_before"],
            "etag_after": last["changes"][0]["etag_after"],
        }
    ]
    await broker.close()


async def test_a_sink_that_fails_is_asked_again_and_nothing_overtakes(broker: Broker) -> None:
    sink = SinkServer()
    async with sink.running() as url, relay.to_sink(f"{url}/events") as send, writing(broker, SPEC) as writer:
        sink.answers = [(503, {}), (429, {"retry-after": "0"})]
        async with relaying(broker, writer, "sink", send):
            await put(writer, OTHER)
            await eventually(lambda: len(sink.accepted) == 2)
    assert [(each.headers["ce-id"], each.status) for each in sink.received] == [
        ("1", 503),
        ("1", 429),
        ("1", 200),
        ("2", 200),
    ]
    (event,) = binding.from_http(sink.received[-1].headers, sink.received[-1].body)
    assert event.get_type() == changed_event.TYPE


async def test_what_a_sink_sets_as_a_cookie_is_not_kept(broker: Broker) -> None:
    sink = SinkServer()
    async with sink.running() as url, relay.to_sink(url) as send, writing(broker, SPEC) as writer:
        sink.answers = [(200, {"set-cookie": "a=b; Path=/"})]
        async with relaying(broker, writer, "sink", send):
            await put(writer, OTHER)
            await eventually(lambda: len(sink.accepted) == 2)
    assert not any("cookie" in each.headers for each in sink.received)


async def test_what_a_sink_refuses_for_good_holds_up_nothing(broker: Broker) -> None:
    sink = SinkServer()
    async with sink.running() as url, relay.to_sink(url) as send, writing(broker, SPEC) as writer:
        sink.answers = [(400, {})]
        async with relaying(broker, writer, "sink", send):
            await put(writer, OTHER)
            await eventually(lambda: len(sink.accepted) == 1)
    assert [each.headers["ce-id"] for each in sink.received] == ["1", "2"]


async def test_a_relay_that_dies_leaves_the_rest_to_the_next(broker: Broker) -> None:
    heard: list[int] = []

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        if event.epoch == 3 and 0 not in heard:
            heard.append(0)
            raise asyncio.CancelledError  # as if it were killed while it tells
        heard.append(event.epoch)
        return None

    async with writing(broker, SPEC) as writer, relaying(broker, writer, "x", send) as relay:
        await put(writer, msgspec.structs.replace(SPEC, max_sequence_length=5))
        await eventually(partial(noted, relay, 2))  # else it is told once more
        for length in (6, 7):
            await put(writer, msgspec.structs.replace(SPEC, max_sequence_length=length))
        await eventually(lambda: heard[-1] == 0)
    async with writing(broker, SPEC) as writer, relaying(broker, writer, "x", send):
        await eventually(lambda: heard[-1] == 4)
    assert heard == [1, 2, 0, 3, 4]


async def test_a_writer_that_no_longer_leads_stops_telling_and_does_not_set_back_the_mark(broker: Broker) -> None:
    asked: list[str] = []
    pauses: list[float | None] = [3600.0]

    def sends(who: str) -> Send:
        async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
            asked.append(f"{who} {event.epoch}")
            return pauses.pop() if pauses else None

        return send

    async with (
        writing(broker, SPEC) as first,
        second_writer(broker, first) as second,
        relaying(broker, first, "x", sends("first")),
        relaying(broker, second, "x", sends("second")) as relay,
    ):
        await eventually(lambda: asked == ["first 1"])
        await put(second, OTHER)  # which leads from now on
        await eventually(lambda: asked == ["first 1", "second 1", "second 2"])
        await eventually(lambda: not first.leading)
        await eventually(partial(noted, relay, 2))
        await put(first, msgspec.structs.replace(OTHER, max_sequence_length=5))  # and now the first again
        await eventually(partial(noted, relay, 3))
        await eventually(lambda: not second.leading)  # it hears of it at its next renewal, and may tell until then
        assert set(asked[3:]) <= {"first 3", "second 3"}
        await put(first, msgspec.structs.replace(OTHER, max_sequence_length=6))
        await eventually(partial(noted, relay, 4))
    assert asked[-1] == "first 4" and "second 4" not in asked


async def test_of_two_that_believe_to_lead_the_one_that_has_told_more_has_its_mark_stand(broker: Broker) -> None:
    told, go_on = asyncio.Event(), asyncio.Event()

    async def send(event: Event, told_of: CloudEvent, attempt: int) -> float | None:
        told.set()
        await go_on.wait()
        return None

    async with writing(broker, SPEC) as writer:
        async with relaying(broker, writer, "x", send) as relay:
            await told.wait()
            await broker.config.put(relay._key, b"7")  # another, meanwhile
            go_on.set()
            await put(writer, OTHER)
        assert await broker.config.get(relay._key) == b"7"


async def test_a_writer_that_is_behind_does_not_take_the_mark_of_another_for_that_of_a_lost_catalogue(
    broker: Broker,
) -> None:
    heard: list[int] = []

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        heard.append(event.epoch)
        return None

    async with writing(broker, SPEC) as writer:
        mirror = Mirror(broker.config, Registry(), baseline={})
        await mirror.snapshot()  # and then hears of nothing
        behind = Writer(broker.config, mirror, writer._provision)
        behind._leading.set()
        await put(writer, OTHER)
        relay = Relay(broker.config, behind, "x", send)
        await broker.config.put(relay._key, b"2")
        await relay._tell()
    assert heard == []


async def test_a_destination_that_takes_nothing_holds_up_no_other(broker: Broker) -> None:
    heard: list[int] = []

    async def never(event: Event, told: CloudEvent, attempt: int) -> float | None:
        return 3600.0

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        heard.append(event.epoch)
        return None

    async with (
        writing(broker, SPEC) as writer,
        relaying(broker, writer, "never", never),
        relaying(broker, writer, "x", send),
    ):
        await put(writer, OTHER)
        await eventually(lambda: heard == [1, 2])


async def test_a_broker_that_is_away_for_a_moment_costs_no_event(broker: Broker) -> None:
    heard: list[int] = []
    away = [True]

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        if away.pop() if away else False:
            raise QueueUnavailableError("The broker does not answer.")
        heard.append(event.epoch)
        return None

    async with writing(broker, SPEC) as writer, relaying(broker, writer, "x", send):
        await eventually(lambda: heard == [1])


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "host:80/x", "http:///x", "http://user:pass word@:8/", "http://h:99999/", "http://h:abc/"]
)
async def test_what_is_no_address_of_a_sink_ends_the_start_and_is_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SIE_CONFIG_SINK") as caught:
        async with relay.to_sink(url):
            pass
    assert "pass" not in str(caught.value) and "abc" not in str(caught.value)


async def test_a_sink_s_user_and_query_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    told = Event(1, 0.0, "", "seed", ())
    async with relay.to_sink("http://user:secret@127.0.0.1:1/in?key=secret") as send:
        assert await send(told, changed_event.changed(told), 1) is not None
    assert "http://127.0.0.1:1/in" in caplog.text and "secret" not in caplog.text


def test_of_a_write_that_is_too_large_the_values_are_left_out() -> None:
    many = tuple(
        Change(f"org/{number}", None, Stored(msgspec.structs.replace(SPEC, id=f"org/{number}"), "written", 1))
        for number in range(900)
    )
    whole = changed_event.changed(Event(1, 0.0, "me", "put", many[:10]))
    short = changed_event.changed(Event(1, 0.0, "me", "put", many))
    told = [data(event) for event in (whole, short)]
    assert [each["complete"] for each in told] == [True, False]
    assert [len(each["changes"]) for each in told] == [10, 900]
    assert told[0]["changes"][0]["fields"] and not told[1]["changes"][0]["fields"]
