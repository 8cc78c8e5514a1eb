"""Exhausted work on a real nats-server: told of or not, by one process or two, it alone is buried, and once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sie_broker import jobs, subjects
from sie_broker.claim import WORK_INLINE_BYTES
from sie_broker.deadletters import Place
from sie_broker.events import envelope
from sie_broker.jetstream.deadletter_stream import NatsDeadLetters
from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import MAX_DELIVERIES, Lane, Queue, Reply, Work
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import running_nats
from tests.congruence.test_broker import Plenty

LANE = Lane("default", "default", "cpu")
MODEL = "org/model.v1"


def work(work_id: str, data: bytes = b"", **more: Any) -> Work:
    return Work(id=work_id, op="encode", lane=LANE, model=MODEL, data=data, time=time.time(), **more)


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    yield broker
    await broker.close()


@asynccontextmanager
async def burying(*brokers: NatsBroker) -> AsyncIterator[None]:
    """Every broker buries, and sweeps ten times a second."""
    runs = [
        asyncio.create_task(Burial(each.nc, each.dead, each.jobs, each.payloads, sweep_s=0.1).run()) for each in brokers
    ]
    yield
    for run in runs:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def exhaust(broker: NatsBroker, *ids: str) -> None:
    """Give each of these works back until the server tells of it; others are held."""
    told = await broker.nc.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")

    async def give_back() -> None:
        async with aclosing(broker.pull(Queue(LANE, MODEL), Plenty(), lambda: 0)) as deliveries:
            async for delivery in deliveries:
                if delivery.work.id in ids:
                    await delivery.nak()

    giving = asyncio.create_task(give_back())
    for _ in ids:
        await told.next_msg(timeout=10)
    giving.cancel()
    with suppress(asyncio.CancelledError):
        await giving
    await told.unsubscribe()


async def buried(broker: NatsBroker, count: int) -> list[str]:
    """The ids of the dead letters once there are ``count`` and the queue holds nothing."""
    end = time.monotonic() + 20
    while True:
        found = [letter.id for letter in await broker.dead.entries()]
        if len(found) == count and not sum((await broker.backlog()).values()):
            return found
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)


async def test_what_no_advisory_told_of_is_found_by_a_sweep(broker: NatsBroker) -> None:
    await broker.submit(work("missed"))
    await exhaust(broker, "missed")
    async with burying(broker):
        assert await buried(broker, 1) == ["missed"]
    (letter,) = await broker.dead.entries()
    assert letter.deliveries == MAX_DELIVERIES


async def test_what_was_missed_is_found_after_a_restart_of_the_server(tmp_path: Path) -> None:
    for found in ([], ["missed"]):
        with running_nats(tmp_path) as url:
            broker = NatsBroker(url, name="test")
            await broker.connect()
            if found:
                async with burying(broker):
                    assert await buried(broker, 1) == found
            else:
                await broker.provision([(LANE, MODEL)])
                await broker.submit(work("missed"))
                await exhaust(broker, "missed")
            await broker.close()


async def test_a_sweep_leaves_alone_what_waits_and_what_is_in_hand(broker: NatsBroker) -> None:
    ids = [f"w{i}" for i in range(40)]
    for each in ids:
        await broker.submit(work(each))
    corpses = set(ids[::4])
    await exhaust(broker, *corpses)
    places = {place.sequence async for place in Burial(broker.nc, broker.dead, broker.jobs, broker.payloads).lying()}
    found = {ids[sequence - 1] for sequence in places}
    # What is above work in hand is not sure yet, so it may be fewer; never others.
    assert found <= corpses
    assert {delivery.work.id for delivery in broker.hands.held.values()} == set(ids) - corpses
    async with burying(broker):
        for delivery in list(broker.hands.held.values()):
            await delivery.ack()
        assert sorted(await buried(broker, len(corpses))) == sorted(corpses)


async def test_two_processes_bury_each_work_once_and_its_caller_is_told(nats_url: str, broker: NatsBroker) -> None:
    other = NatsBroker(nats_url, name="other")
    await other.connect()
    ids = [f"w{i}" for i in range(20)]
    for each in ids:
        await broker.submit(work(each))
    await exhaust(broker, *ids)
    async with burying(broker, other):
        assert sorted(await buried(broker, 20)) == sorted(ids)
    for each in ids:
        assert (await jobs.result(broker.jobs, each)) is not None
    await other.close()


async def test_burying_twice_keeps_one_letter(broker: NatsBroker) -> None:
    receipt = await broker.submit(work("once"))
    burial = Burial(broker.nc, broker.dead, broker.jobs, broker.payloads)
    place = Place(subjects.stream("default"), receipt.sequence, 5)
    await asyncio.gather(burial.bury(place), burial.bury(place))
    await burial.bury(place)
    assert [letter.id for letter in await broker.dead.entries()] == ["once"]


async def test_the_largest_work_and_many_works_fit(broker: NatsBroker) -> None:
    burial = Burial(broker.nc, broker.dead, broker.jobs, broker.payloads)
    largest = work("largest", b"x" * WORK_INLINE_BYTES)
    for each in [largest, *(work(f"w{i}") for i in range(300))]:
        receipt = await broker.submit(each)
        await burial.bury(Place(subjects.stream("default"), receipt.sequence, 5))
    found = await broker.dead.entries()
    assert (len(found), found[0].size) == (301, WORK_INLINE_BYTES)
    assert (await broker.dead.get("largest")).data == largest.data


@pytest.mark.parametrize(
    ("left_out", "others", "letter_id", "fault"),
    [
        ("ce-model", {}, "m", "ce-model"),
        ("ce-id", {}, f"{subjects.stream('default')}-1", "ce-id"),
        ("", {"ce-priority": "urgent"}, "m", "urgent"),
        ("", {"ce-time": "yesterday"}, "m", "yesterday"),
    ],
)
async def test_a_work_event_that_cannot_be_read_is_a_dead_letter_and_its_sender_is_told(
    broker: NatsBroker, left_out: str, others: dict[str, str], letter_id: str, fault: str
) -> None:
    headers, body = envelope.from_work(work("m", b"body"), source="/somebody")
    headers = {name: value for name, value in headers.items() if name != left_out} | others
    await broker.nc.jetstream().publish(subjects.work(Queue(LANE, MODEL)), body, headers=headers)
    pulled = asyncio.create_task(anext(pulling := broker.pull(Queue(LANE, MODEL), Plenty(), lambda: 0)))
    assert await buried(broker, 1) == [letter_id]
    pulled.cancel()
    with suppress(asyncio.CancelledError):
        await pulled
    await pulling.aclose()
    letter = await broker.dead.get(letter_id)
    assert (letter.reason, letter.data, letter.headers) == ("malformed", b"body", headers)
    assert fault in letter.fault
    told = await jobs.result(broker.jobs, "m")
    assert (told is None) == (left_out == "ce-id")
    if told is not None:
        assert told.status == 400
        assert fault in msgspec.json.decode(told.data)["error"]["message"]


async def test_a_replay_without_anybody_to_work_on_it_is_refused(broker: NatsBroker) -> None:
    receipt = await broker.submit(work("orphan"))
    await Burial(broker.nc, broker.dead, broker.jobs, broker.payloads).bury(
        Place(subjects.stream("default"), receipt.sequence, 5)
    )
    await broker.nc.jetstream().delete_consumer(subjects.stream("default"), subjects.consumer(Queue(LANE, MODEL)))
    with pytest.raises(QueueUnavailableError, match=r"org=2Fmodel=2Ev1 any more"):
        await broker.dead.replay("orphan")
    assert [letter.id for letter in await broker.dead.entries()] == ["orphan"]
    assert sum((await broker.backlog()).values()) == 0


async def test_a_letter_that_is_replayed_while_it_is_buried_keeps_no_error(broker: NatsBroker) -> None:
    async def replayed(reply_to: str | None, reply: Reply) -> None:
        await broker.deliver_reply(reply_to, reply)
        assert await jobs.result(broker.jobs, "early") is not None
        await broker.dead.replay("early")

    dead = NatsDeadLetters(broker.nc, broker.jobs, broker.payloads, replayed)
    await broker.submit(work("early", reply_to="sie.reply.gone.early"))
    await exhaust(broker, "early")
    await Burial(broker.nc, dead, broker.jobs, broker.payloads).bury(Place(subjects.stream("default"), 1, 5))
    assert await jobs.result(broker.jobs, "early") is None
    assert list(await broker.backlog()) and await broker.dead.entries() == []


async def test_an_answer_that_comes_while_a_letter_is_buried_stays(broker: NatsBroker) -> None:
    async def late(reply_to: str | None, reply: Reply) -> None:
        await jobs.keep(broker.jobs, Reply(id=reply.id, data=b"answer"))

    dead = NatsDeadLetters(broker.nc, broker.jobs, broker.payloads, late)
    await broker.submit(work("late", reply_to="sie.reply.gone.late"))
    await exhaust(broker, "late")
    await Burial(broker.nc, dead, broker.jobs, broker.payloads).bury(Place(subjects.stream("default"), 1, 5))
    assert ((await jobs.result(broker.jobs, "late")) or Reply("late", b"")).data == b"answer"
