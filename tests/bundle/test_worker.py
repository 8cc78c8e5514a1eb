"""The worker's promises on both brokers: reply before ack, nothing computed twice, nothing given to a sixth worker."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import cast

import msgspec
import pytest

from sie_broker import jobs, room, subjects
from sie_broker.contract import Broker, Bucket, Delivery
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import DUE, JOBS, Limits
from sie_broker.records import Lane, Queue, Reply, Work
from sie_bundle.in_hand import WITHDRAWN, InHand
from sie_bundle.worker import Worker
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import InvalidInputError, QueueFullError
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC

LANE: Lane = lane_of(SPEC)


class Counting:
    """An operation that notes what it computes; ``hold`` keeps it from finishing."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.most = 0
        self._now = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, work: Work) -> bytes:
        self.seen.append(work.id)
        self._now += 1
        self.most = max(self.most, self._now)
        await self.hold.wait()
        self._now -= 1
        if work.data == b"bad":
            raise InvalidInputError("Bad.", field="items")
        return b"done"


@asynccontextmanager
async def working(broker: Broker, operation: Counting) -> AsyncIterator[Worker]:
    worker = Worker(broker, Registry([SPEC]), LANE, "w", {"encode": operation}, loaded=lambda: [MODEL], max_in_hand=4)
    worker.start()
    try:
        yield worker
    finally:
        operation.hold.set()
        await worker.drain(5)


def work(work_id: str, data: bytes = b"") -> Work:
    now = round(time.time(), 6)
    return Work(id=work_id, op="encode", lane=LANE, model=MODEL, data=data, time=now)


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL)])
    return broker


async def result(broker: Broker, work_id: str) -> Reply:
    reply = await jobs.wait_result(broker.jobs, work_id, 10)
    assert reply is not None
    return reply


async def backlog_empty(broker: Broker) -> None:
    end = time.monotonic() + 10
    while sum((await broker.backlog()).values()):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_work_is_answered_and_leaves_the_queue(ready: Broker) -> None:
    operation = Counting()
    async with working(ready, operation) as worker:
        await ready.submit(work("a"))
        assert (await result(ready, "a")).data == b"done"
        await backlog_empty(ready)
        assert worker.completed == 1


async def test_no_more_is_taken_than_there_is_room_for(ready: Broker) -> None:
    operation = Counting()
    operation.hold.clear()
    for number in range(20):
        await ready.submit(work(str(number)))
    async with working(ready, operation) as worker:
        await eventually(lambda: len(operation.seen) == worker.in_hand == 4)
        operation.hold.set()
        await backlog_empty(ready)
    assert len(operation.seen) == 20
    assert operation.most == 4


@pytest.mark.parametrize("beside", [False, True], ids=["of its model", "of its model's next version or LoRA"])
async def test_work_that_waits_for_a_load_leaves_room_for_other_models(broker: Broker, beside: bool) -> None:
    cold, other = (msgspec.structs.replace(SPEC, id=f"{SPEC.id}-{name}") for name in ("cold", "other"))
    await broker.provision([(LANE, spec.id) for spec in (SPEC, cold, other)])
    loading, seen, coming = asyncio.Event(), list[str](), {cold.id}
    models = {MODEL, cold.id} if beside else {MODEL}

    async def operation(work: Work) -> bytes:
        seen.append(work.model)
        if work.model == cold.id:
            await loading.wait()
        return b"done"

    registry = Registry([SPEC, cold, other])
    worker = Worker(
        broker, registry, LANE, "w", {"encode": operation}, lambda: models, max_in_hand=4, loading=lambda: coming
    )
    for number in range(20):
        await broker.submit(msgspec.structs.replace(work(f"cold-{number}"), model=cold.id))
    worker.start()
    await eventually(lambda: seen.count(cold.id) >= 2)
    for spec in (SPEC, other):
        for number in range(10):
            await broker.submit(msgspec.structs.replace(work(f"{spec.id}-{number}"), model=spec.id))
    for spec in (SPEC, other):
        for number in range(10):
            assert (await result(broker, f"{spec.id}-{number}")).data == b"done"
    assert seen.count(cold.id) == 2
    models.add(cold.id)
    coming.clear()
    loading.set()
    await backlog_empty(broker)
    assert seen.count(cold.id) == 20
    await eventually(lambda: not worker.in_hand)
    await worker.drain(5)


async def test_bad_input_is_answered_with_its_error_and_never_delivered_again(ready: Broker) -> None:
    operation = Counting()
    async with working(ready, operation):
        await ready.submit(work("a", b"bad"))
        reply = await result(ready, "a")
        await backlog_empty(ready)
    assert reply.status == 400
    assert msgspec.json.decode(reply.data)["error"]["param"] == "items"
    assert operation.seen == ["a"]


async def test_an_operation_the_bundle_does_not_do_is_refused(ready: Broker) -> None:
    async with working(ready, Counting()):
        await ready.submit(msgspec.structs.replace(work("a"), op="transmogrify"))
        assert (await result(ready, "a")).status == 400


async def test_work_past_its_deadline_is_not_computed(ready: Broker) -> None:
    operation = Counting()
    async with working(ready, operation):
        await ready.submit(msgspec.structs.replace(work("a"), deadline=1.0))
        assert (await result(ready, "a")).status == 504
    assert operation.seen == []


async def test_work_whose_result_was_kept_before_its_worker_died_is_not_computed_again(ready: Broker) -> None:
    await ready.submit(work("a"))
    async with aclosing(ready.pull(Queue(LANE, MODEL), Room(), lambda: 0)) as deliveries:
        async for lost in deliveries:
            await lost.reply(Reply(id="a", data=b"first"))
            await lost.nak()  # as if its lease had run out before the ack
            break
    operation = Counting()
    async with working(ready, operation):
        await backlog_empty(ready)
    assert operation.seen == []
    assert (await result(ready, "a")).data == b"first"


async def test_work_that_was_lost_with_four_workers_is_computed_by_the_fifth(ready: Broker) -> None:
    await ready.submit(work("a"))
    async with aclosing(ready.pull(Queue(LANE, MODEL), Room(), lambda: 0)) as deliveries:
        async for lost in deliveries:
            await lost.nak()
            if lost.attempt == 4:
                break
    operation = Counting()
    async with working(ready, operation):
        assert (await result(ready, "a")).data == b"done"
        await backlog_empty(ready)
    assert operation.seen == ["a"]


async def test_a_draining_worker_finishes_what_it_holds_and_leaves_the_rest_to_others(ready: Broker) -> None:
    slow, other = Counting(), Counting()
    slow.hold.clear()
    ids = [f"w{i}" for i in range(12)]
    for each in ids:
        await ready.submit(work(each))
    async with working(ready, slow) as worker:
        await eventually(lambda: len(slow.seen) >= 4)
        draining = asyncio.create_task(worker.drain(10))
        await asyncio.sleep(0)
        slow.hold.set()
        await draining
        held = list(slow.seen)
    async with working(ready, other):
        for each in ids:
            assert (await result(ready, each)).data == b"done"
        await backlog_empty(ready)
    assert sorted(held + other.seen) == sorted(ids)


@pytest.fixture
async def narrow(nats_url: str) -> AsyncIterator[NatsBroker]:
    """A broker with little room for jobs and hardly any for results due at sinks."""
    broker = NatsBroker(nats_url, "test", Limits(job_max_bytes=1 << 20))
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    js = broker.nc.jetstream()
    due = (await js.stream_info(DUE)).config
    due.max_msgs = 2
    await js.update_stream(due)
    yield broker
    await broker.close()


async def fill(bucket: Bucket) -> None:
    """Leave no room for even an error."""
    number = itertools.count()
    for size in (100_000, 10_000, 1000, 100, 1):
        with suppress(QueueFullError):
            while True:
                await bucket.put(f"filler.{next(number)}", bytes(size))


@pytest.mark.parametrize("full", ["jobs", "sinks"])
async def test_answers_without_room_keep_nobody_waiting_and_are_given_once_there_is_some(
    narrow: NatsBroker, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_bundle.worker.FULL_S", 1.0)
    operation, ids = Counting(), [f"w{i}" for i in range(10)]
    if full == "jobs":
        await fill(narrow.jobs)
    else:
        for each in ("a", "b"):
            await narrow.deliver_reply(subjects.sink(each), Reply(id=each, data=b""))
    async with working(narrow, operation):
        for each in ids:
            sink = subjects.sink(each) if full == "sinks" else None
            await narrow.submit(msgspec.structs.replace(work(each), reply_to=sink))
        await eventually(lambda: set(operation.seen) == set(ids))
        with narrow.expect("warm") as (inbox, coming):
            await narrow.submit(msgspec.structs.replace(work("warm"), reply_to=inbox))
            async with asyncio.timeout(20):
                assert (await coming).data == b"done"
        js = narrow.nc.jetstream()
        await js.purge_stream(f"KV_{JOBS}")
        await narrow.provision([(LANE, MODEL)])  # with its own limits, which leave room for all that is due
        replies = [await result(narrow, each) for each in ids]
        # Room that comes between an answer and the error in its place is that of the error.
        assert {reply.status for reply in replies} <= ({200, 503} if full == "jobs" else {200})
        await backlog_empty(narrow)


class Room(room.Room):
    """Room for one at a time, that nobody fills."""

    def __init__(self) -> None:
        super().__init__(1)


async def test_work_that_is_withdrawn_ends_unanswered_and_is_over(broker: Broker) -> None:
    await broker.provision([(LANE, MODEL)])
    counting = Counting()
    counting.hold.clear()
    async with working(broker, counting) as worker:
        gone, stays = work("gone"), work("stays")
        receipt = await broker.submit(gone)
        await broker.submit(stays)
        await eventually(lambda: len(counting.seen) == 2)
        await broker.withdraw(gone, receipt.sequence)
        await eventually(lambda: worker.in_hand == 1)
        counting.hold.set()
        assert await jobs.wait_result(broker.jobs, stays.id, 10) is not None
    assert await jobs.result(broker.jobs, gone.id) is None
    assert counting.seen == ["gone", "stays"]


async def test_work_that_is_withdrawn_before_its_first_step_is_acknowledged_all_the_same() -> None:
    in_hand, settled = InHand(), list[str]()

    class Early:
        work = work("early")

        async def ack(self) -> None:
            settled.append("acked")

    in_hand.begin(
        "early", in_hand.unless_withdrawn(cast(Delivery, Early()), lambda delivery: asyncio.sleep(60)), lambda: None
    )
    in_hand.withdraw("early")
    await eventually(lambda: not len(in_hand))
    assert settled == ["acked"]


async def test_work_that_was_withdrawn_on_its_way_is_not_begun() -> None:
    in_hand, settled = InHand(), list[str]()

    class Late:
        work = work("late")

        async def ack(self) -> None:
            settled.append("acked")

    async def settle(delivery: Delivery) -> None:
        settled.append("begun")

    in_hand.withdraw("late")
    await in_hand.unless_withdrawn(cast(Delivery, Late()), settle)
    assert settled == ["acked"]
    for number in range(WITHDRAWN):  # no more than so many are remembered
        in_hand.withdraw(str(number))
    await in_hand.unless_withdrawn(cast(Delivery, Late()), settle)
    assert settled == ["acked", "begun"]
