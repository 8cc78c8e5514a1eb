"""The worker and data too large for a message: loaded before it computes, lost by name, answered within its limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from sie_broker import claim, jobs
from sie_broker.contract import Broker, Delivery
from sie_broker.memory import MemoryBroker
from sie_broker.records import Queue, Reply, Work
from sie_bundle.worker import Worker
from sie_config.registry import Registry
from sie_sdk.errors import PayloadTooLargeError, QueueUnavailableError
from tests.bundle.test_worker import LANE, Room, backlog_empty, work
from tests.conftest import eventually
from tests.congruence.test_payloads import MIB, eventually_empty, tamper
from tests.ingress.conftest import MODEL, SPEC


class Measuring:
    """An operation that answers with ``size`` bytes and notes how much it was given; ``hold`` keeps it from ending."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.given: list[int] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, work: Work) -> bytes:
        self.given.append(len(work.data))
        await self.hold.wait()
        return os.urandom(self.size)


@asynccontextmanager
async def working(broker: Broker, operation: Measuring, max_reply_bytes: int = 64 * MIB) -> AsyncIterator[Worker]:
    worker = Worker(
        broker, Registry([SPEC]), LANE, "w", {"encode": operation}, lambda: [MODEL], 4, max_reply_bytes=max_reply_bytes
    )
    worker.start()
    try:
        yield worker
    finally:
        operation.hold.set()
        await worker.drain(5)


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL)])
    return broker


async def result(broker: Broker, work_id: str) -> Reply:
    reply = await jobs.wait_result(broker.jobs, work_id, 20)
    assert reply is not None
    return await claim.redeem(broker.payloads, reply)


def code(reply: Reply) -> str:
    return str(msgspec.json.decode(reply.data)["error"]["code"])


async def pulled(broker: Broker) -> Delivery:
    """One delivery, as a worker's that then stands still."""
    async with aclosing(broker.pull(Queue(LANE, MODEL), Room(), lambda: 0)) as deliveries:
        async for delivery in deliveries:
            return delivery
    raise AssertionError


async def test_large_work_is_computed_from_its_data_and_its_large_answer_is_kept(ready: Broker) -> None:
    operation = Measuring(30 * MIB)
    async with working(ready, operation):
        await ready.submit(work("a", bytes(20 * MIB)))
        assert len((await result(ready, "a")).data) == 30 * MIB
        await backlog_empty(ready)
        await eventually_empty(ready, "work")
    assert operation.given == [20 * MIB]


async def test_small_work_is_not_held_up_by_large_work_that_is_being_loaded(ready: Broker) -> None:
    operation, loading, go_on = Measuring(), asyncio.Event(), asyncio.Event()
    load = ready.payloads.load

    async def slow(dataref: str) -> bytes:
        loading.set()
        await go_on.wait()
        return await load(dataref)

    ready.payloads.load = slow  # type: ignore[method-assign]
    async with working(ready, operation):
        await ready.submit(work("large", bytes(MIB)))
        await loading.wait()
        await ready.submit(work("small"))
        assert (await result(ready, "small")).status == 200
        go_on.set()
        assert (await result(ready, "large")).status == 200
    assert operation.given == [0, MIB]


@pytest.mark.parametrize("how", ["gone", "damaged"])
async def test_work_whose_data_is_lost_is_answered_by_name_and_terminated(ready: Broker, how: str) -> None:
    await ready.submit(work("a", bytes(MIB)))
    delivery = await pulled(ready)
    assert delivery.work.dataref is not None
    if how == "gone":
        await ready.payloads.drop(delivery.work.dataref)
    else:
        await tamper(ready, delivery.work.dataref, b"x" * claim.CHUNK_BYTES)
    await delivery.nak()
    operation = Measuring()
    async with working(ready, operation) as worker:
        reply = await result(ready, "a")
        await backlog_empty(ready)
        assert worker.completed == 1
    assert (reply.status, code(reply)) == (500, "PAYLOAD_LOST")
    assert operation.given == []
    await eventually_empty(ready, "work")


async def test_work_that_refers_to_what_cannot_be_read_is_refused_as_input(ready: Broker) -> None:
    await ready.submit(msgspec.structs.replace(work("a"), dataref="https://example.org/data"))
    async with working(ready, Measuring()):
        reply = await result(ready, "a")
        await backlog_empty(ready)
    assert reply.status == 400
    assert msgspec.json.decode(reply.data)["error"]["param"] == "dataref"


async def test_a_worker_that_lost_its_lease_before_it_had_the_data_does_not_spoil_the_answer(ready: Broker) -> None:
    operation, loading, go_on = Measuring(), asyncio.Event(), asyncio.Event()
    load = ready.payloads.load

    async def stopped(dataref: str) -> bytes:
        loading.set()
        await go_on.wait()
        return await load(dataref)

    ready.payloads.load = stopped  # type: ignore[method-assign]
    await ready.submit(work("a", bytes(MIB)))
    zombie = await pulled(ready)
    await zombie.nak()  # as if its lease had run out: another has the work, and both answer
    async with working(ready, operation) as worker:
        await loading.wait()
        await zombie.reply(Reply(id="a", data=b"good"))
        await zombie.ack()
        await eventually_empty(ready, "work")
        go_on.set()
        await eventually(lambda: worker.in_hand == 0)
        assert worker.completed == 0
    assert (await result(ready, "a")).data == b"good"
    assert operation.given == []


async def test_an_answer_over_the_limit_is_refused_with_both_sizes(ready: Broker) -> None:
    async with working(ready, Measuring(3 * MIB), max_reply_bytes=2 * MIB):
        await ready.submit(work("a"))
        reply = await result(ready, "a")
    assert (reply.status, code(reply)) == (413, "PAYLOAD_TOO_LARGE")
    error = msgspec.json.decode(reply.data)["error"]
    assert error["limit"] == 2 * MIB and str(3 * MIB) in error["message"]


async def test_an_answer_for_which_there_is_no_room_becomes_an_error_and_not_a_wait() -> None:
    broker = MemoryBroker()
    broker.payloads._max_bytes = MIB
    async with working(broker, Measuring(3 * MIB)):
        await broker.submit(work("a"))
        reply = await result(broker, "a")
        await backlog_empty(broker)
    assert (reply.status, code(reply)) == (503, "QUEUE_FULL")


async def test_an_answer_that_no_server_would_take_becomes_an_error() -> None:
    class Narrow(MemoryBroker):
        async def deliver_reply(self, reply_to: str | None, reply: Reply) -> None:
            if len(reply.data) > 1000:
                raise PayloadTooLargeError("No message.", field="data", limit=1000)
            await super().deliver_reply(reply_to, reply)

    async with working(broker := Narrow(), Measuring(2000)):
        await broker.submit(work("a"))
        reply = await result(broker, "a")
        await backlog_empty(broker)
    assert (reply.status, code(reply)) == (413, "PAYLOAD_TOO_LARGE")


async def test_a_worker_that_is_stopped_while_it_waits_for_the_broker_acknowledges_nothing() -> None:
    class Away(MemoryBroker):
        async def deliver_reply(self, reply_to: str | None, reply: Reply) -> None:
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as nats-py swallows one
                raise QueueUnavailableError("Away.") from None

    broker, waiting = Away(), asyncio.Event()
    worker = Worker(broker, Registry([SPEC]), LANE, "w", {"encode": Measuring()}, lambda: [MODEL], 4)
    worker.start()
    receipt = await broker.submit(work("a"))
    await waiting.wait()
    await worker.drain(0.0)
    assert await broker.queued(LANE, receipt.sequence)


async def test_work_that_a_killed_server_delivers_again_after_its_end_keeps_its_answer(ready: Broker) -> None:
    dataref = await ready.payloads.store("work", "a", bytes(MIB))
    await ready.payloads.drop(dataref)
    await jobs.keep(ready.jobs, Reply(id="a", data=b"good"))
    # Its ack is forgotten, and so is that it was ever delivered: this is its first attempt.
    await ready.submit(msgspec.structs.replace(work("a"), dataref=dataref))
    async with working(ready, Measuring()):
        await backlog_empty(ready)
    assert (await result(ready, "a")).data == b"good"
