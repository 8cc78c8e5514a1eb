"""The broker's contract, run on the in-memory broker and on a real nats-server: both must do the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from sie_broker import jobs
from sie_broker.contract import Broker, Delivery
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import Limits
from sie_broker.jobs import Job
from sie_broker.memory import MemoryBroker
from sie_broker.records import Lane, Queue, Reply, Work
from sie_broker.room import Room
from sie_sdk.errors import QueueFullError, QueueUnavailableError
from sie_sdk.types import Priority
from tests.conftest import eventually

T = TypeVar("T")

LANE = Lane(pool="default", bundle="default", profile="cpu")
MODEL = "org/model.v1"


class Plenty(Room):
    """Room that nobody fills."""

    def __init__(self) -> None:
        super().__init__(16)


def work(work_id: str, *, model: str = MODEL, data: bytes = b"body", **more: Any) -> Work:
    now = round(time.time(), 6)  # the envelope carries microseconds
    return Work(id=work_id, op="encode", lane=LANE, model=model, data=data, time=now, **more)


@asynccontextmanager
async def collecting(source: AsyncGenerator[T, None]) -> AsyncIterator[asyncio.Queue[T]]:
    """What a generator of the broker yields, as a queue; closed at the end, as a worker closes it."""
    taken: asyncio.Queue[T] = asyncio.Queue()

    async def run() -> None:
        async with aclosing(source) as items:
            async for item in items:
                await taken.put(item)

    task = asyncio.create_task(run())
    try:
        yield taken
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def pulling(
    broker: Broker, model: str = MODEL, priority: Priority = "interactive", lane: Lane = LANE
) -> AbstractAsyncContextManager[asyncio.Queue[Delivery]]:
    """Deliveries of one model in one priority class, as a queue."""
    return collecting(broker.pull(Queue(lane, model, priority), Plenty(), lambda: 5))


async def take(taken: asyncio.Queue[Delivery]) -> Delivery:
    async with asyncio.timeout(10):
        return await taken.get()


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL), (LANE, "other")])
    return broker


async def test_work_arrives_whole_and_in_order(ready: Broker) -> None:
    sent = [work(f"w{i}", data=bytes([i])) for i in range(20)]
    for each in sent:
        await ready.submit(each)
    async with pulling(ready) as taken:
        for each in sent:
            delivery = await take(taken)
            assert delivery.work == each
            assert delivery.attempt == 1
            await delivery.ack()


async def test_queues_that_are_made_later_take_work_and_leave_the_others_as_they_are(ready: Broker) -> None:
    team = Lane(pool="team", bundle="default", profile="cpu")
    await ready.submit(work("there"))
    for _ in range(2):
        await ready.provision_also([(LANE, "later"), (team, MODEL)])
    await ready.submit(work("later", model="later"))
    await ready.submit(msgspec.structs.replace(work("team"), lane=team))
    async with pulling(ready) as own, pulling(ready, "later") as later, pulling(ready, lane=team) as teams:
        for taken, work_id in ((own, "there"), (later, "later"), (teams, "team")):
            delivery = await take(taken)
            assert delivery.work.id == work_id
            await delivery.ack()


async def test_work_submitted_before_any_worker_exists_waits_for_one(ready: Broker) -> None:
    receipt = await ready.submit(work("early"))
    assert await ready.queued(LANE, receipt.sequence)
    assert await ready.backlog() == {LANE: 1}
    async with pulling(ready) as taken:
        await (await take(taken)).ack()
    await eventually_not_queued(ready, receipt.sequence)
    assert sum((await ready.backlog()).values()) == 0


async def eventually_not_queued(broker: Broker, sequence: int, lane: Lane = LANE) -> None:
    end = time.monotonic() + 10
    while await broker.queued(lane, sequence):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_a_worker_gets_only_the_model_it_pulls(ready: Broker) -> None:
    await ready.submit(work("a", model="other"))
    await ready.submit(work("b"))
    async with pulling(ready) as taken:
        assert (await take(taken)).work.id == "b"
    async with pulling(ready, "other") as taken:
        assert (await take(taken)).work.id == "a"


async def test_bulk_and_interactive_work_wait_in_queues_of_their_own(ready: Broker) -> None:
    await ready.submit(work("slow", priority="bulk"))
    await ready.submit(work("fast", tenant="acme", cause="event-1"))
    async with pulling(ready) as taken, pulling(ready, priority="bulk") as bulk:
        assert (await take(bulk)).work.id == "slow"
        fast = (await take(taken)).work
        assert (fast.id, fast.priority, fast.tenant, fast.cause) == ("fast", "interactive", "acme", "event-1")
    assert await ready.backlog() == {LANE: 2}


async def test_the_same_id_is_accepted_once(ready: Broker) -> None:
    first = await ready.submit(work("same"))
    again = await ready.submit(work("same"))
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.sequence == first.sequence
    async with pulling(ready) as taken:
        await (await take(taken)).ack()
        await eventually_not_queued(ready, first.sequence)
        assert taken.empty()


async def test_a_reply_reaches_everybody_who_expects_it(ready: Broker) -> None:
    with ready.expect("w") as (inbox, first), ready.expect("w") as (_, second):
        await ready.submit(work("w", reply_to=inbox))
        async with pulling(ready) as taken:
            delivery = await take(taken)
            reply = Reply(id="w", data=b"answer", status=200, worker="w1")
            await delivery.reply(reply)
            await delivery.ack()
        async with asyncio.timeout(5):
            assert await first == reply
            assert await second == reply
    assert await jobs.result(ready.jobs, "w") is None


async def test_a_reply_nobody_expects_any_more_is_kept_as_the_job_s_result(ready: Broker) -> None:
    with ready.expect("late") as (inbox, _):
        await ready.submit(work("late", reply_to=inbox))
    async with pulling(ready) as taken:
        await (await take(taken)).reply(Reply(id="late", data=b"kept"))
    kept = await jobs.wait_result(ready.jobs, "late", 5)
    assert kept is not None and kept.data == b"kept"


async def test_work_without_an_inbox_leaves_its_reply_as_the_job_s_result(ready: Broker) -> None:
    await ready.submit(work("cold"))
    waiting = asyncio.create_task(jobs.wait_result(ready.jobs, "cold", 10))
    async with pulling(ready) as taken:
        delivery = await take(taken)
        await delivery.reply(Reply(id="cold", data=b"later", worker="w"))
        await delivery.ack()
    kept = await waiting
    assert kept == Reply(id="cold", data=b"later", worker="w")
    assert await jobs.wait_result(ready.jobs, "cold", 0) == kept


async def test_an_error_that_comes_late_takes_no_answer_s_place_and_an_answer_takes_an_error_s(ready: Broker) -> None:
    refused = Reply(id="job", data=b"out of memory", status=503)
    for reply in (refused, msgspec.structs.replace(refused, data=b"once more")):
        await ready.deliver_reply(None, reply)
        assert await jobs.result(ready.jobs, "job") == reply
    answer = Reply(id="job", data=b"answer")
    await ready.deliver_reply(None, answer)
    await ready.deliver_reply(None, refused)
    assert await jobs.result(ready.jobs, "job") == answer
    await jobs.forget_result(ready.jobs, "job", await jobs.result_revision(ready.jobs, "job"))
    await ready.deliver_reply(None, refused)
    assert await jobs.result(ready.jobs, "job") == refused


async def test_a_result_that_was_not_told_of_is_found_by_looking_again(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def deaf(changed: object, key: str = ">") -> AsyncIterator[None]:
        watching.set()
        yield

    watching = asyncio.Event()
    monkeypatch.setattr(ready.jobs, "watch", deaf)
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 0.05)
    waiting = asyncio.create_task(jobs.wait_result(ready.jobs, "untold", 60))
    await watching.wait()
    kept = Reply(id="untold", data=b"kept")
    await jobs.keep(ready.jobs, kept)
    async with asyncio.timeout(10):
        assert await waiting == kept


async def test_a_result_that_was_told_before_and_stored_after_somebody_began_to_wait_is_there_at_once(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_early(key: str) -> bytes | None:
        monkeypatch.setattr(ready.jobs, "get", read)
        return None

    kept = Reply(id="stored late", data=b"kept")
    await jobs.keep(ready.jobs, kept)
    read = ready.jobs.get
    monkeypatch.setattr(ready.jobs, "get", too_early)
    monkeypatch.setattr(jobs, "LOOK_AGAIN_S", 60)
    async with asyncio.timeout(10):
        assert await jobs.wait_result(ready.jobs, "stored late", 60) == kept


async def test_waiting_for_a_result_ends_at_its_timeout(ready: Broker) -> None:
    assert await jobs.wait_result(ready.jobs, "never", 0.05) is None


async def test_a_job_is_found_until_it_is_forgotten(ready: Broker) -> None:
    job = Job(id="j/1", lane=LANE, model=MODEL, accepted=1.0, digest=jobs.digest(MODEL, b"body"))
    assert await jobs.find(ready.jobs, "j/1") is None
    await jobs.accept(ready.jobs, job)
    assert await jobs.find(ready.jobs, "j/1") == job


async def test_work_given_back_is_delivered_again_with_its_attempt_counted(ready: Broker) -> None:
    await ready.submit(work("again"))
    async with pulling(ready) as taken:
        await (await take(taken)).nak()
        second = await take(taken)
        assert (second.work.id, second.attempt) == ("again", 2)
        await second.nak(delay=0.05)
        assert (await take(taken)).attempt == 3


async def test_terminated_work_is_not_delivered_again(ready: Broker) -> None:
    receipt = await ready.submit(work("bad"))
    async with pulling(ready) as taken:
        await (await take(taken)).term("bad input")
        await eventually_not_queued(ready, receipt.sequence)
        assert taken.empty()


async def test_work_that_arrives_while_a_worker_waits_is_delivered_at_once(ready: Broker) -> None:
    async with pulling(ready) as taken:
        for i in range(5):
            await ready.submit(work(f"n{i}"))
            delivery = await take(taken)
            assert delivery.work.id == f"n{i}"
            await delivery.ack()


async def test_a_wake_tells_the_demand_holder_which_lane(ready: Broker) -> None:
    woken: list[Lane] = []
    async with ready.on_wake(woken.append):
        ready.wake(LANE)
        await eventually(lambda: woken == [LANE])


async def test_a_bucket_tells_values_and_deletions_and_remembers_the_last(ready: Broker) -> None:
    seen: list[tuple[str, bytes | None]] = []
    async with ready.config.watch(lambda key, value: seen.append((key, value))):
        await ready.config.put("models.a=2Fb", b"1")
        await ready.config.put("models.a=2Fb", b"2")
        await ready.config.put("models.c", b"3")
        await ready.config.delete("models.c")
        await eventually(lambda: len(seen) == 4)
    assert seen == [("models.a=2Fb", b"1"), ("models.a=2Fb", b"2"), ("models.c", b"3"), ("models.c", None)]
    assert await ready.config.get("models.a=2Fb") == b"2"
    assert await ready.config.get("models.c") is None
    assert await ready.config.entries() == {"models.a=2Fb": b"2"}


async def test_retired_queues_take_no_work_and_are_gone_once_what_waits_in_them_is_done(ready: Broker) -> None:
    lane = Lane(pool="team-a", bundle="default", profile="cpu")
    await ready.provision([(lane, MODEL)])
    waiting = msgspec.structs.replace(work("waiting"), lane=lane)
    await ready.submit(waiting)
    assert not await ready.retire("team-a")
    with pytest.raises(QueueUnavailableError):
        await ready.submit(msgspec.structs.replace(waiting, id="late"))
    assert await ready.backlog() == {lane: 1}
    async with pulling(ready, lane=lane) as taken:
        delivery = await take(taken)
        assert delivery.work == waiting
        assert not await ready.retire("team-a")
        await delivery.ack()
        await eventually_not_queued(ready, 1, lane)
    assert await ready.retire("team-a")
    assert await ready.retire("team-a")
    with pytest.raises(QueueUnavailableError):
        await ready.submit(msgspec.structs.replace(waiting, id="too late"))
    await ready.submit(work("elsewhere"))


async def test_queues_that_were_closed_or_removed_take_work_again_once_provisioned(ready: Broker) -> None:
    lane = Lane(pool="team-a", bundle="default", profile="cpu")
    mine = msgspec.structs.replace(work("first"), lane=lane)
    await ready.provision([(lane, MODEL)])
    await ready.submit(mine)
    assert not await ready.retire("team-a")
    await ready.provision([(lane, MODEL)])
    await ready.submit(msgspec.structs.replace(mine, id="second"))
    async with pulling(ready, lane=lane) as taken:
        for work_id in ("first", "second"):
            delivery = await take(taken)
            assert delivery.work.id == work_id
            await delivery.ack()
    await gone(ready, "team-a")
    await ready.provision([(lane, MODEL)])
    await ready.submit(msgspec.structs.replace(mine, id="third"))
    async with pulling(ready, lane=lane) as taken:
        assert (await take(taken)).work.id == "third"


async def gone(broker: Broker, pool: str) -> None:
    end = time.monotonic() + 10
    while not await broker.retire(pool):
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", ["memory", "nats"])
async def test_a_full_queue_refuses_its_own_work_alone(kind: str, request: pytest.FixtureRequest) -> None:
    full: Broker = MemoryBroker(max_queued=3)
    if kind == "nats":
        full = NatsBroker(request.getfixturevalue("nats_url"), "test", Limits(queue_max_messages=3))
    await full.connect()
    await full.provision([(LANE, MODEL), (LANE, "other")])
    for number in range(3):
        await full.submit(work(f"bulk{number}", priority="bulk"))
    with pytest.raises(QueueFullError):
        await full.submit(work("bulk3", priority="bulk"))
    await full.submit(work("interactive"))
    await full.submit(work("elsewhere", model="other", priority="bulk"))
    async with pulling(full, priority="bulk") as taken:
        await (await take(taken)).ack()
        await eventually_accepted(full, work("bulk3", priority="bulk"))
    await full.close()


async def eventually_accepted(broker: Broker, one: Work) -> None:
    """An acknowledgement may still be on its way."""
    end = time.monotonic() + 10
    while True:
        try:
            await broker.submit(one)
            return
        except QueueFullError:
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
