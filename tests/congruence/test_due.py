"""Results for sinks are kept and said to be due, once each, whoever takes them; on both brokers."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

import pytest

from sie_broker import jobs, subjects
from sie_broker.contract import Broker
from sie_broker.parcel import Parcel
from sie_broker.records import DeadLetter, Reply
from tests.congruence.test_broker import LANE, MODEL, Plenty, collecting, pulling, take, work


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL)])
    return broker


def dispatching(broker: Broker) -> AbstractAsyncContextManager[asyncio.Queue[Parcel]]:
    """What is due, as a queue."""
    return collecting(broker.due(Plenty()))


async def due(taken: asyncio.Queue[Parcel]) -> Parcel:
    async with asyncio.timeout(10):
        return await taken.get()


async def test_a_reply_for_a_sink_is_kept_and_due(ready: Broker) -> None:
    await ready.submit(work("a/b-0", reply_to=subjects.sink("a/b")))
    async with pulling(ready) as taken:
        delivery = await take(taken)
        await delivery.reply(Reply(id="a/b-0", data=b"result"))
        await delivery.ack()
    kept = await jobs.result(ready.jobs, "a/b-0")
    assert kept is not None and kept.data == b"result"
    async with dispatching(ready) as parcels:
        parcel = await due(parcels)
        assert subjects.job_of_sink(parcel.subject) == "a/b"
        assert (parcel.data, parcel.attempt, dict(parcel.headers).get("ce-id")) == (b"a/b-0", 1, None)
        assert abs(parcel.at - time.time()) < 60
        await parcel.ack()


async def test_what_is_given_back_comes_again_as_a_further_attempt_and_what_is_acknowledged_does_not(
    ready: Broker,
) -> None:
    for name in ("a", "b"):
        await ready.submit(work(name, reply_to=subjects.sink(name)))
    async with pulling(ready) as taken, dispatching(ready) as parcels:
        for _ in range(2):
            delivery = await take(taken)
            await delivery.reply(Reply(id=delivery.work.id, data=b""))
            await delivery.ack()
        first, second = await due(parcels), await due(parcels)
        await second.ack()
        for attempt in range(2, 9):  # more often than work would be
            await first.nak(0.01)
            again = await due(parcels)
            assert (again.subject, again.attempt, again.at) == (first.subject, attempt, first.at)
            first = again
        await first.ack()
        assert parcels.empty()


async def test_a_result_that_is_a_dead_letter_is_told_to_nobody_and_is_due_again_when_it_is_replayed(
    ready: Broker,
) -> None:
    letter = DeadLetter(
        id="a-result",
        reason="undeliverable",
        subject=subjects.sink("a"),
        headers={"ce-id": "a", "ce-replyto": "https://sink.test/"},
        at=1.0,
        accepted=0.5,
        deliveries=3,
        size=4,
        fault="503 from https://sink.test/",
        data=b"body",
    )
    assert await ready.dead.count() == 0
    await ready.dead.bury(letter, 7)
    assert await ready.dead.get("a-result") == letter
    assert await ready.dead.count() == 1
    assert await jobs.result(ready.jobs, "a-result") is None
    async with dispatching(ready) as parcels:
        await ready.dead.replay("a-result")
        parcel = await due(parcels)
        assert {name: parcel.headers[name] for name in letter.headers} == letter.headers
        assert (parcel.subject, parcel.data) == (letter.subject, b"body")
        await parcel.ack()
    assert await ready.dead.entries() == []
    assert await ready.dead.count() == 0
