"""Results come to their sinks: at least once, whatever the sink says first, and nowhere else; on both brokers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import nats
import numpy as np
import pytest

from sie_broker import claim, jobs, subjects
from sie_broker.contract import Broker
from sie_broker.events import sink_answers, sink_room, sinks
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import Dispatcher, Sink
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.merge import part_id
from sie_broker.records import DeadLetter, Reply
from sie_sdk import replies, results, wire
from sie_sdk.outputs import DenseOutput
from sie_sdk.types import Timing, Usage
from tests.broker.sink_double import SinkServer
from tests.conftest import eventually
from tests.congruence.test_broker import LANE, MODEL

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Office:
    """A broker with results that are due, and a sink server."""

    def __init__(self, broker: Broker, server: SinkServer) -> None:
        self.broker = broker
        self.server = server

    async def due(self, job: str = "j 1", *, to: str = "", sizes: tuple[int, ...] = (), **more: Any) -> None:
        """Let the results of one job be due, of all its parts in order."""
        await self.record(job, to=to, sizes=sizes, **more)
        for number, count in enumerate(sizes or (1,)):
            await self.answer(job, number if sizes else None, count)

    async def record(self, job: str, *, to: str = "", sizes: tuple[int, ...] = (), **more: Any) -> None:
        sink = Sink(to=to or f"{self.server.url}/sink", sizes=sizes, **{"media": wire.JSON, **more})
        await sinks.keep(self.broker.sinks, job, sink)

    async def answer(self, job: str, part: int | None = None, count: int = 1, status: int = 200) -> None:
        own = job if part is None else part_id(job, part)
        data = body(count, 10 * (part or 0)) if status == 200 else b'{"error": {"code": "INVALID_INPUT"}}'
        reply = Reply(id=own, data=data, status=status, worker="w", cause="e 1")
        await self.broker.deliver_reply(subjects.sink(job), reply)

    async def letters(self) -> list[DeadLetter]:
        return await self.broker.dead.entries()


def body(count: int, first: int) -> bytes:
    rows = np.arange(first, first + count, dtype="<f4").reshape(-1, 1)
    return replies.encode(MODEL, [None] * count, {"dense": DenseOutput(rows, 1, "float32")}, Timing(), Usage())


@pytest.fixture
async def office(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    monkeypatch.setattr(sink_answers, "FIRST_PAUSE_S", 0.02)
    await broker.provision([(LANE, MODEL)])
    server = SinkServer()
    async with server.running():
        yield Office(broker, server)


@asynccontextmanager
async def dispatching(office: Office, urls: str = "", name: str = "") -> AsyncIterator[None]:
    task = asyncio.create_task(Dispatcher(office.broker, AllowList(urls or office.server.url, "_INBOX.")).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def buried(office: Office) -> DeadLetter:
    end = time.monotonic() + 10
    while not (letters := await office.letters()):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    (letter,) = letters
    return letter


async def test_a_result_arrives_as_an_event_that_names_its_job_and_its_cause(office: Office) -> None:
    await office.due(traceparent=TRACE)
    before = await office.broker.jobs.get("result." + subjects.token("j 1"))
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    (received,) = office.server.received
    said = {name.removeprefix("ce-"): value for name, value in received.headers.items() if name.startswith("ce-")}
    assert datetime.fromisoformat(said.pop("time")).timestamp() == pytest.approx(time.time(), abs=60)
    assert said == {
        "specversion": "1.0",
        "id": "j%201",
        "source": "/v1/jobs/j%201",
        "type": "dev.sie.result.v1",
        "status": "200",
        "causationid": "e%201",
        "traceparent": TRACE,
    }
    assert (received.path, received.headers["content-type"]) == ("/sink", wire.JSON)
    assert json.loads(received.body)["items"][0]["dense"]["values"] == [0.0]
    assert await office.broker.jobs.get("result." + subjects.token("j 1")) == before, "the job keeps its result"


async def test_who_asked_in_msgpack_is_answered_in_msgpack(office: Office) -> None:
    await office.due(media=wire.MSGPACK)
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    (received,) = office.server.received
    (item,) = results.read_encode(received.body)
    assert item.dense is not None and item.dense.tolist() == [0.0]


async def test_a_result_that_was_too_large_for_a_message_arrives_whole(office: Office) -> None:
    await office.record("j", media=wire.MSGPACK)
    large = body(400_000, 0)
    reply = await claim.check_in(office.broker.payloads, Reply(id="j", data=large, worker="w"))
    assert reply.dataref is not None
    await office.broker.deliver_reply(subjects.sink("j"), reply)
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    (received,) = office.server.received
    assert received.body == large


async def test_an_error_arrives_as_an_event_that_says_so(office: Office) -> None:
    await office.record("j")
    await office.answer("j", status=400)
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    (received,) = office.server.received
    assert received.headers["ce-status"] == "400"
    assert json.loads(received.body)["error"]["code"] == "INVALID_INPUT"


async def test_parts_arrive_as_one_event_in_order_and_once(office: Office) -> None:
    await office.record("j", sizes=(2, 1, 2))
    async with dispatching(office):
        for part, count in ((2, 2), (0, 2), (1, 1)):
            assert office.server.received == []
            await office.answer("j", part, count)
        await eventually(lambda: bool(office.server.accepted))
        await office.due("last")  # in its turn behind what is left of the parts
        await eventually(lambda: len(office.server.accepted) >= 2)
    first, last = office.server.received
    assert [item["dense"]["values"][0] for item in json.loads(first.body)["items"]] == [0, 1, 10, 20, 21]
    assert (first.headers["ce-id"], last.headers["ce-id"]) == ("j", "last")


async def test_a_result_that_is_due_before_it_is_kept_arrives_once_it_is(office: Office) -> None:
    await office.due("j")
    kept = await jobs.result(office.broker.jobs, "j")
    assert kept is not None
    await office.broker.jobs.delete("result.j")
    async with dispatching(office):
        await office.due("other")
        await eventually(lambda: bool(office.server.accepted))
        await jobs.keep(office.broker.jobs, kept)
        await eventually(lambda: len(office.server.accepted) == 2)
    assert [each.headers["ce-id"] for each in office.server.received] == ["other", "j"]


async def test_a_sink_that_cannot_now_is_asked_again_until_it_can_and_then_no_more(office: Office) -> None:
    office.server.answers = [(503, {}), (429, {"Retry-After": "0"}), (404, {}), (408, {}), (500, {})]
    await office.due()
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
        await office.due("last")
        await eventually(lambda: len(office.server.accepted) == 2)
    assert [each.status for each in office.server.received] == [503, 429, 404, 408, 500, 200, 200]
    identity = {(each.headers["ce-source"], each.headers["ce-id"], each.body) for each in office.server.received[:6]}
    assert len(identity) == 1, "each try is the same event"
    assert await office.letters() == []


async def test_a_sink_that_is_not_there_yet_gets_the_result_once_it_is(office: Office) -> None:
    server = SinkServer()
    async with server.running() as url:
        port = int(url.rsplit(":", 1)[1])
    await office.due(to=f"{url}/late")
    async with dispatching(office, url):
        await asyncio.sleep(0.1)  # some tries come to nothing
        async with server.running(port):
            await eventually(lambda: len(server.accepted) == 1)


@pytest.mark.parametrize("status", [400, 401, 410, 413, 302, 304])
async def test_a_sink_that_never_will_is_asked_once_and_the_result_is_a_dead_letter(
    office: Office, status: int
) -> None:
    office.server.answers = [(status, {"Location": f"{office.server.url}/elsewhere"})]
    await office.due()
    async with dispatching(office):
        letter = await buried(office)
    assert [(each.path, each.status) for each in office.server.received] == [("/sink", status)]
    assert (letter.id, letter.reason, letter.deliveries) == ("j 1-result", "undeliverable", 1)
    assert letter.fault == f"{office.server.url}/sink: HTTP {status}"
    kept = await jobs.result(office.broker.jobs, "j 1")
    assert kept is not None and kept.status == 200, "the job keeps its result"


async def test_a_sink_that_fails_every_time_is_given_up_after_so_many_tries_and_its_result_can_be_sent_again(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "TRIES", 3)
    office.server.answers = [(503, {})] * 3
    await office.due()
    async with dispatching(office):
        letter = await buried(office)
        assert [each.status for each in office.server.received] == [503] * 3
        await office.broker.dead.replay(letter.id)
        await eventually(lambda: bool(office.server.accepted))
    *_, refused, taken = office.server.received
    assert (refused.headers | {"ce-time": ""}) == (taken.headers | {"ce-time": ""})
    assert refused.body == taken.body
    assert await office.letters() == []


async def test_what_an_address_has_for_secrets_is_sent_and_shown_to_nobody_else(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", sinks.log.name)
    monkeypatch.setattr(sinks, "TRIES", 2)
    office.server.answers = [(503, {}), (503, {})]
    await office.due(to=f"{office.server.url}/sink?key=secret")
    async with dispatching(office):
        letter = await buried(office)
        assert letter.fault == f"{office.server.url}/sink: HTTP 503"
        await office.broker.dead.replay(letter.id)
        await eventually(lambda: bool(office.server.accepted))
    assert [each.query for each in office.server.received] == ["key=secret"] * 3
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("sie.")]
    assert any(f"{office.server.url}/sink: HTTP 503" in each for each in ours)
    assert not any("secret" in each for each in ours)


async def test_cookies_of_a_sink_are_not_kept(office: Office) -> None:
    office.server.answers = [(200, {"Set-Cookie": "tenant=a; Path=/"})]
    async with dispatching(office):
        for number in (1, 2):
            await office.due(f"{number}")
            await eventually(lambda: len(office.server.accepted) == number)  # noqa: B023  # awaited in the turn
    assert not any("cookie" in each.headers for each in office.server.received)


async def test_waiting_for_its_turn_is_no_try(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", sinks.log.name)
    monkeypatch.setattr(sinks, "TRIES", 2)
    monkeypatch.setattr(sinks, "PER_HOST", 0)
    office.server.answers = [(503, {})]
    await office.due()
    async with dispatching(office):
        await eventually(lambda: caplog.text.count("busy") >= 3)
        monkeypatch.setattr(sinks, "PER_HOST", 1)
        await eventually(lambda: len(office.server.received) == 2)
    assert [each.status for each in office.server.received] == [503, 200]
    assert await office.letters() == []


async def test_last_parts_that_end_together_are_sent_once_though_both_had_to_wait(office: Office) -> None:
    await office.due("j", sizes=(1, 1))
    await office.due("k")
    due = [part_id("j", 0), part_id("j", 1), "k"]
    kept = [await jobs.result(office.broker.jobs, each) for each in due]
    for each in due:
        await office.broker.jobs.delete("result." + subjects.token(each))
    office.server.hold.clear()
    async with dispatching(office):
        await office.due("other")  # in its turn behind all three
        await eventually(lambda: len(office.server.received) == 1)
        for reply in kept:
            assert reply is not None
            await jobs.keep(office.broker.jobs, reply)
        await eventually(lambda: "k" in [each.headers["ce-id"] for each in office.server.received])
        office.server.hold.set()
        await eventually(lambda: not office.server.open)
    assert sorted(each.headers["ce-id"] for each in office.server.received) == ["j", "k", "other"]


async def test_a_sink_that_is_not_allowed_is_not_asked(office: Office) -> None:
    await office.due(to=f"{office.server.url}/other")
    async with dispatching(office, f"{office.server.url}/sink"):
        letter = await buried(office)
    assert "are not sent" in letter.fault
    assert office.server.received == []


async def test_a_sink_that_hangs_does_not_keep_the_others_waiting(office: Office) -> None:
    slow = SinkServer()
    slow.hold.clear()
    async with slow.running() as url:
        for number in range(sinks.IN_HAND + 8):
            await office.due(f"slow {number}", to=url)
        await office.due("quick")
        async with dispatching(office, f"{url},{office.server.url}"):
            await eventually(lambda: bool(office.server.accepted))
            assert slow.most_open == sinks.PER_HOST
            slow.hold.set()
            await eventually(lambda: len(slow.accepted) == sinks.IN_HAND + 8, 30)


async def test_the_first_sink_of_a_job_stands(office: Office) -> None:
    await office.record("j")
    await office.due("j", to=f"{office.server.url}/other")
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    assert [each.path for each in office.server.received] == ["/sink"]


async def test_a_result_too_large_for_a_sink_is_an_error_there(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sinks.MAX_BYTES, wire.JSON, 10)
    await office.due()
    async with dispatching(office):
        await eventually(lambda: bool(office.server.accepted))
    (received,) = office.server.received
    assert received.headers["ce-status"] == "413"


async def test_large_results_are_sent_one_at_a_time_and_keep_their_payload_as_dead_letters(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_room, "LARGE_BYTES", 10)
    office.server.hold.clear()
    office.server.answers = [(400, {})]
    async with dispatching(office):
        for number in range(4):
            await office.due(f"{number}")
        await eventually(lambda: bool(office.server.open))
        office.server.hold.set()
        letter = await buried(office)
        await eventually(lambda: len(office.server.accepted) == 3)
        assert office.server.most_open == 1
        assert "ce-dataref" in letter.headers and letter.size > 10
        await office.broker.dead.replay(letter.id)
        await eventually(lambda: len(office.server.accepted) == 4)
    assert len({each.body for each in office.server.received}) == 1


async def test_a_subject_is_told_in_binary_mode(nats_url: str) -> None:
    broker = NatsBroker(nats_url, "test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    office = Office(broker, SinkServer())
    listener = await nats.connect(nats_url)
    inbox = listener.new_inbox()
    subscription = await listener.subscribe(inbox)
    await listener.flush()
    async with dispatching(office, "http://nowhere.test/"):
        await office.due(to=f"nats:{inbox}")
        message = await subscription.next_msg(10)
    assert message.headers is not None
    assert {name: message.headers[f"ce-{name}"] for name in ("id", "status", "datacontenttype", "causationid")} == {
        "id": "j%201",
        "status": "200",
        "datacontenttype": wire.JSON,
        "causationid": "e%201",
    }
    assert json.loads(message.data)["items"][0]["dense"]["values"] == [0.0]
    await listener.close()
    await broker.close()


async def test_two_dispatchers_share_what_is_due(nats_url: str) -> None:
    brokers = [NatsBroker(nats_url, f"test-{number}") for number in range(2)]
    for broker in brokers:
        await broker.connect()
    await brokers[0].provision([(LANE, MODEL)])
    server = SinkServer()
    async with server.running():
        offices = [Office(broker, server) for broker in brokers]
        async with dispatching(offices[0]), dispatching(offices[1]):
            for number in range(40):
                await offices[0].due(f"{number}")
            await eventually(lambda: len(server.received) >= 40)
    assert sorted(int(each.headers["ce-id"]) for each in server.received) == list(range(40))
    for broker in brokers:
        await broker.close()
