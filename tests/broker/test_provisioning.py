"""Streams, buckets and consumers as declared: made, changed in place with what is in them, refused by name, kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from sie_broker import subjects
from sie_broker.jetstream import streams
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.provisioning import Provisioner
from sie_broker.jetstream.streams import Limits
from sie_broker.records import Lane, Queue, Work
from sie_sdk.errors import ConfigurationError, QueueFullError
from tests.congruence.test_broker import pulling, take

LANE = Lane("default", "default", "cpu")
OTHER = Lane("team", "default", "cpu")
MODELS = ["org/a", "org/b.v2"]
CHANGED = Limits(
    work_max_bytes=64 << 20,
    pool_max_bytes=32 << 20,
    work_max_messages=5,
    work_max_age_s=600,
    job_lifetime_s=120,
    job_max_bytes=2 << 20,
    ack_wait_s=2,
)


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    yield broker
    await broker.close()


def provisioner(broker: NatsBroker, limits: Limits | None = None, stale_s: float = 0.0) -> Provisioner:
    return Provisioner(broker.nc, limits or Limits(), stale_s)


def work(work_id: str, model: str = "org/a") -> Work:
    return Work(id=work_id, op="encode", lane=LANE, model=model, data=b"body", time=round(time.time(), 6))


async def ask(broker: NatsBroker, what: str, request: Any = None) -> dict[str, Any]:
    body = b"" if request is None else msgspec.json.encode(request)
    answer: dict[str, Any] = msgspec.json.decode((await broker.nc.request(f"$JS.API.{what}", body)).data)
    return answer


async def consumers(broker: NatsBroker, pool: str = "default") -> dict[str, dict[str, Any]]:
    listed = await ask(broker, f"CONSUMER.LIST.{subjects.stream(pool)}")
    return {each["name"]: each for each in listed["consumers"] or ()}


@asynccontextmanager
async def changes(broker: NatsBroker) -> AsyncIterator[list[str]]:
    """What is asked of the server meanwhile, but for questions."""
    asked: list[str] = []

    async def note(message: Msg) -> None:
        if not {"INFO", "LIST", "NAMES"} & set(message.subject.split(".")):
            asked.append(message.subject)

    observing = await broker.nc.subscribe("$JS.API.>", cb=note)
    yield asked
    await broker.nc.flush()
    await observing.unsubscribe()


@pytest.mark.parametrize("limits", [Limits(), CHANGED], ids=["default", "chosen"])
async def test_a_fresh_server_gets_everything_as_declared_and_a_second_time_changes_nothing(
    broker: NatsBroker, limits: Limits
) -> None:
    queues = [(lane, model) for lane in (LANE, OTHER) for model in MODELS]
    await provisioner(broker, limits).ensure(queues)
    pools = [streams.work_stream(pool, limits) for pool in ("default", "team")]
    for declared in [*streams.buckets(limits), streams.dead_stream(limits), *pools]:
        there = await ask(broker, f"STREAM.INFO.{declared['name']}")
        assert streams.differences(declared, there["config"]) == []
    for lane in (LANE, OTHER):
        there = await consumers(broker, lane.pool)
        assert len(there) == 4
        for priority in ("interactive", "bulk"):
            declared = streams.work_consumer(Queue(lane, "org/b.v2", priority), limits)
            assert streams.differences(declared, there[declared["name"]]["config"]) == []
    async with changes(broker) as asked:
        await provisioner(broker, limits).ensure(queues)
    assert asked == []


async def test_the_shortest_times_that_may_be_set_are_taken(broker: NatsBroker) -> None:
    await provisioner(broker, Limits(work_max_age_s=1, job_lifetime_s=1, ack_wait_s=1)).ensure([(LANE, "org/a")])
    assert (await ask(broker, "STREAM.INFO.EVENTS"))["config"]["max_age"] == streams.NANO


async def test_limits_change_in_place_and_what_is_kept_stays(broker: NatsBroker) -> None:
    await provisioner(broker).ensure([(LANE, "org/a")])
    for i in range(8):
        await broker.submit(work(f"w{i}"))
    await broker.jobs.put("result.x", b"kept")
    async with pulling(broker, "org/a") as taken:
        for delivery in [await take(taken) for _ in range(8)]:
            await delivery.nak(delay=1)
    await provisioner(broker, CHANGED).ensure([(LANE, "org/a")])
    assert (await ask(broker, "STREAM.INFO.WORK_default"))["config"]["max_msgs"] == 5
    assert (await ask(broker, f"STREAM.INFO.KV_{streams.JOBS}"))["config"]["max_bytes"] == 2 << 20
    assert (await ask(broker, f"STREAM.INFO.{streams.DUE}"))["config"]["max_msgs"] == -1, "its own"
    assert (await ask(broker, "STREAM.INFO.KV_sie_jobs"))["config"]["max_age"] == 120 * streams.NANO
    assert {each["config"]["ack_wait"] for each in (await consumers(broker)).values()} == {2 * streams.NANO}
    # More waits than the new limit allows: nothing of it is thrown away, only new work is refused.
    assert await broker.backlog() == {LANE: 8}
    with pytest.raises(QueueFullError):
        await broker.submit(work("one too many"))
    assert await broker.jobs.get("result.x") == b"kept"
    async with pulling(broker, "org/a") as taken:
        for _ in range(8):
            await (await take(taken)).ack()


async def test_what_an_operator_added_to_a_stream_stays(broker: NatsBroker) -> None:
    await provisioner(broker).ensure([(LANE, "org/a")])
    there = (await ask(broker, "STREAM.INFO.WORK_default"))["config"]
    await ask(broker, "STREAM.UPDATE.WORK_default", there | {"description": "ours", "compression": "s2"})
    await provisioner(broker, CHANGED).ensure([(LANE, "org/a")])
    there = (await ask(broker, "STREAM.INFO.WORK_default"))["config"]
    assert (there["description"], there["compression"], there["max_msgs"]) == ("ours", "s2", 5)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("WORK_default", "retention", "limits"),
        ("WORK_default", "storage", "memory"),
        ("KV_sie_jobs", "storage", "memory"),
        ("DEAD", "retention", "workqueue"),
    ],
)
async def test_what_cannot_change_in_place_is_refused_by_stream_and_field(
    broker: NatsBroker, name: str, field: str, value: str
) -> None:
    limits = Limits()
    every = [*streams.buckets(limits), streams.dead_stream(limits), streams.work_stream("default", limits)]
    (declared,) = [each for each in every if each["name"] == name]
    assert "error" not in await ask(broker, f"STREAM.CREATE.{name}", declared | {field: value})
    with pytest.raises(ConfigurationError, match=rf"{name} has {field} '{value}'") as refused:
        await provisioner(broker).ensure([(LANE, "org/a")])
    assert (refused.value.field, refused.value.limit) == (f"{name}.{field}", declared[field])
    assert (await ask(broker, f"STREAM.INFO.{name}"))["config"][field] == value


async def test_a_model_with_the_longest_name_has_its_queue(broker: NatsBroker) -> None:
    ours, model = provisioner(broker), f"a{'.a' * 99}"
    await ours.ensure([(LANE, model)])
    await broker.submit(work("w", model))
    async with pulling(broker, model) as taken:
        await (await take(taken)).ack()


async def test_what_the_server_refuses_keeps_no_other_queue_from_being_made(broker: NatsBroker) -> None:
    ours = provisioner(broker)
    await ours.ensure([])
    taken = ConsumerConfig(durable_name="theirs", filter_subject=subjects.work(Queue(LANE, "org/a")))
    await broker.nc.jetstream().add_consumer("WORK_default", taken)
    with pytest.raises(ConfigurationError, match="not unique"):
        await ours.ensure([(LANE, model) for model in (*MODELS, *(f"org/{number}" for number in range(99)))])
    assert len(await consumers(broker)) == 2 * 101


async def test_replicas_that_the_server_cannot_have_are_refused_with_its_words(broker: NatsBroker) -> None:
    with pytest.raises(ConfigurationError, match="replicas > 1 not supported"):
        await provisioner(broker, Limits(stream_replicas=3)).ensure([(LANE, "org/a")])


async def test_the_queues_of_a_model_that_left_go_once_nothing_waits_in_them(broker: NatsBroker) -> None:
    ours = provisioner(broker)
    await ours.ensure([(LANE, "org/a"), (LANE, "org/b.v2"), (OTHER, "org/b.v2")])
    await broker.submit(work("last", "org/b.v2"))
    await ours.ensure([(LANE, "org/a")])
    bulk, interactive = (subjects.consumer(Queue(LANE, "org/b.v2", each)) for each in ("bulk", "interactive"))
    assert bulk not in await consumers(broker)
    assert interactive in await consumers(broker)
    async with pulling(broker, "org/b.v2") as taken:
        await (await take(taken)).ack()
    end = time.monotonic() + 10
    while interactive in await consumers(broker):
        assert time.monotonic() < end
        await ours.ensure([(LANE, "org/a")])
    assert len(await consumers(broker)) == 2
    # The pool that was not named is another's.
    assert len(await consumers(broker, "team")) == 2


async def test_queues_go_only_when_their_model_has_been_gone_for_a_while(broker: NatsBroker) -> None:
    patient = provisioner(broker, stale_s=3600)
    both = [(LANE, model) for model in MODELS]
    await patient.ensure(both)
    for _ in range(3):
        await patient.ensure(both[:1])
    assert len(await consumers(broker)) == 4


async def test_a_consumer_of_somebody_else_is_left_alone(broker: NatsBroker) -> None:
    await provisioner(broker).ensure([(LANE, "org/a")])
    await broker.nc.jetstream().add_consumer(
        "WORK_default", ConsumerConfig(durable_name="mine", filter_subject="sie.work.default.mine.>")
    )
    for _ in range(2):
        await provisioner(broker).ensure([(LANE, "org/a")])
    assert "mine" in await consumers(broker)


async def test_a_lease_as_short_as_it_was_set_is_renewed_in_time(broker: NatsBroker) -> None:
    await provisioner(broker, Limits(ack_wait_s=1)).ensure([(LANE, "org/a")])
    renewed = asyncio.Event()

    async def note(message: Msg) -> None:
        if message.data == b"+WPI" and time.monotonic() - started > 2.5:
            renewed.set()

    await broker.nc.subscribe("$JS.ACK.>", cb=note)
    await broker.submit(work("long"))
    async with pulling(broker, "org/a") as taken:
        delivery = await take(taken)
        started = time.monotonic()
        async with asyncio.timeout(30):
            await renewed.wait()
        assert taken.empty()
        await delivery.ack()


async def test_the_queues_of_one_more_model_cost_a_request_each(broker: NatsBroker) -> None:
    ours = provisioner(broker)
    await ours.ensure([(LANE, "org/a")])
    asked: list[str] = []

    async def note(message: Msg) -> None:
        asked.append(message.subject.split(".")[3])

    observing = await broker.nc.subscribe("$JS.API.>", cb=note)
    for _ in range(2):  # the second time they are there
        await ours.ensure_also([(LANE, "org/b.v2")])
    await broker.nc.flush()
    await observing.unsubscribe()
    assert asked == ["CREATE"] * 4
    there = await consumers(broker)
    assert len(there) == 4
    declared = streams.work_consumer(Queue(LANE, "org/b.v2", "bulk"), Limits())
    assert streams.differences(declared, there[declared["name"]]["config"]) == []
    async with pulling(broker, "org/b.v2") as taken:
        await broker.submit(work("w", "org/b.v2"))
        await (await take(taken)).ack()


async def test_queues_of_a_pool_that_has_none_come_with_their_stream(broker: NatsBroker) -> None:
    await provisioner(broker).ensure_also([(OTHER, "org/a")])
    assert len(await consumers(broker, "team")) == 2


async def test_queues_that_are_there_otherwise_are_changed_and_keep_what_an_operator_added(broker: NatsBroker) -> None:
    await provisioner(broker).ensure([(LANE, "org/a")])
    there = (await consumers(broker))[name := subjects.consumer(Queue(LANE, "org/a", "bulk"))]["config"]
    create = f"CONSUMER.CREATE.WORK_default.{name}.{there['filter_subject']}"
    await ask(broker, create, {"stream_name": "WORK_default", "config": there | {"description": "ours"}})
    await provisioner(broker, CHANGED).ensure_also([(LANE, "org/a")])
    there = (await consumers(broker))[name]["config"]
    assert (there["description"], there["ack_wait"]) == ("ours", 2 * streams.NANO)


async def test_a_model_that_came_back_is_not_gone_since_it_went_first(broker: NatsBroker) -> None:
    ours = provisioner(broker, stale_s=1.0)
    await ours.ensure([(LANE, model) for model in MODELS])
    await ours.ensure([(LANE, "org/a")])
    await asyncio.sleep(1.1)
    await ours.ensure_also([(LANE, "org/b.v2")])
    await ours.ensure([(LANE, "org/a")])  # by a list from before
    assert len(await consumers(broker)) == 4


async def test_more_queues_than_the_server_lists_at_once_are_made_once(broker: NatsBroker) -> None:
    many = [(LANE, f"org/m{number}") for number in range(140)]
    await provisioner(broker).ensure(many)
    there = await ask(broker, "CONSUMER.LIST.WORK_default")
    assert len(there["consumers"]) < there["total"] == 280
    async with changes(broker) as asked:
        await provisioner(broker).ensure(many)
    assert asked == []
