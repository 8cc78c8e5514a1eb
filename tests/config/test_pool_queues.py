"""The queues of pools, on both brokers: there before work is accepted, gone after the lease, with nothing lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.pools.pool import Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, Queue, Work
from sie_broker.room import Room
from sie_config import pool_queues
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import ConfigurationError, QueueUnavailableError
from tests.config.writing import under_way
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

TEAM = Lane("team-a", "default", "cpu")
ELSEWHERE = msgspec.structs.replace(SPEC, id="org/elsewhere", machine_profiles=("l4",))
GOLD = msgspec.structs.replace(SPEC, id="org/gold", pool="gold")
REGISTRY = Registry([SPEC, ELSEWHERE, GOLD])


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_queues, "LOOK_S", 0.02)


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pool(name: str = "team-a", *, now: float = 1000.0) -> Pool:
    """A pool made at ``now`` for ten minutes."""
    return Pool(name, {"cpu": 1}, now, now, 600.0)


def work(work_id: str, lane: Lane = TEAM) -> Work:
    return Work(id=work_id, op="encode", lane=lane, model=SPEC.id, data=b"", time=time.time())


@asynccontextmanager
async def keeping(broker: Broker, clock: Clock) -> AsyncIterator[PoolTable]:
    """The config service's part at work; yields another process's table."""
    await broker.provision([(lane_of(spec), spec.id) for spec in REGISTRY.specs()])
    table = PoolTable(broker.pools)
    async with under_way(PoolQueues(broker, REGISTRY, PoolTable(broker.pools), clock).run(), table.follow()):
        yield table


async def create(table: PoolTable, made: Pool) -> Pool:
    await table.change(made.name, lambda _: made)
    await eventually(lambda: table.ready(made))
    return made


async def finish(broker: Broker, *ids: str) -> None:
    """Do the work that waits in the pool."""
    async with asyncio.timeout(10), aclosing(broker.pull(Queue(TEAM, SPEC.id), Room(16), lambda: 0)) as deliveries:
        for each in ids:
            delivery = await anext(deliveries)
            assert delivery.work.id == each
            await delivery.ack()


def test_a_pool_has_queues_for_the_models_of_the_default_pool_with_its_bundle_and_profile(clock: Clock) -> None:
    table = PoolTable(None)  # type: ignore[arg-type]  # only looked at
    table.pools = {"team-a": pool(), "ended": pool("ended", now=100.0)}
    queues = PoolQueues(None, REGISTRY, table, clock)  # type: ignore[arg-type]
    assert list(queues.living()) == [(TEAM, SPEC.id)]


async def test_a_new_pool_gets_its_queues_and_then_says_so(broker: Broker, clock: Clock) -> None:
    async with keeping(broker, clock) as table:
        await create(table, pool())
        await broker.submit(work("a"))
        await finish(broker, "a")


async def test_a_pool_whose_lease_has_ended_takes_no_more_work_and_goes_when_its_last_is_done(
    broker: Broker, clock: Clock
) -> None:
    async with keeping(broker, clock) as table:
        made = await create(table, pool())
        accepted = ["first"]
        await broker.submit(work("first"))
        clock.now += 600.0
        with pytest.raises(QueueUnavailableError):
            async with asyncio.timeout(10):
                while True:
                    await broker.submit(work(f"late-{len(accepted)}"))
                    accepted.append(f"late-{len(accepted)}")
                    await asyncio.sleep(0.005)
        await eventually(lambda: not table.ready(made))
        assert table.pools == {"team-a": made}, "it stays while its work waits"
        await finish(broker, *accepted)
        await eventually(lambda: not table.pools)


async def test_a_deleted_pool_goes_at_once_and_may_be_made_again(broker: Broker, clock: Clock) -> None:
    async with keeping(broker, clock) as table:
        await create(table, pool())
        await table.change("team-a", deleted)
        await eventually(lambda: not table.pools and not table.queues)
        await create(table, pool(now=1001.0))
        await broker.submit(work("b"))
        await finish(broker, "b")


async def test_a_pool_that_is_made_again_before_its_last_work_is_done_keeps_that_work(
    broker: Broker, clock: Clock
) -> None:
    async with keeping(broker, clock) as table:
        made = await create(table, pool())
        await broker.submit(work("old"))
        await table.change("team-a", deleted)
        await eventually(lambda: not table.ready(made))
        await create(table, pool(now=1001.0))
        await broker.submit(work("new"))
        await finish(broker, "old", "new")


def deleted(pool: Pool | None) -> Pool | None:
    return pool and msgspec.structs.replace(pool, deleted=True)


async def test_a_renewed_pool_keeps_its_queues(broker: Broker, clock: Clock) -> None:
    async with keeping(broker, clock) as table:
        made = await create(table, pool())
        clock.now += 500.0
        await table.change("team-a", lambda pool: pool and msgspec.structs.replace(pool, last_renewed=clock.now))
        clock.now += 500.0
        await create(table, pool("later", now=clock.now))  # so there was a look
        assert table.ready(made)
        await broker.submit(work("a"))


async def test_a_pool_of_the_catalogue_is_never_closed(broker: Broker, clock: Clock) -> None:
    async with keeping(broker, clock) as table:
        await table.change("gold", lambda _: pool("gold", now=100.0))
        await eventually(lambda: not table.pools)
        await broker.submit(msgspec.structs.replace(work("a", lane_of(GOLD)), model=GOLD.id))


async def test_the_pools_of_the_catalogue_are_told_apart_from_those_that_were_made(broker: Broker) -> None:
    await broker.provision([])
    table, heard = PoolTable(broker.pools), PoolTable(broker.pools)
    await table.note_home("silver")
    await PoolQueues(broker, REGISTRY, table).note_homes()
    await heard.read()
    assert heard.homes == {"gold": True}


async def test_a_pool_that_cannot_be_served_keeps_no_other_from_its_queues(
    broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision = broker.provision

    async def refuse(queues: Iterable[tuple[Lane, str]]) -> None:
        listed = list(queues)
        if any(lane.pool == "cursed" for lane, _ in listed):
            raise ConfigurationError("The broker refuses it.")
        await provision(listed)

    monkeypatch.setattr(broker, "provision", refuse)
    async with keeping(broker, clock) as table:
        await table.change("cursed", lambda _: pool("cursed"))
        await create(table, pool())
        assert not table.ready(table.pools["cursed"])


async def test_pools_of_before_the_start_are_found(broker: Broker, clock: Clock) -> None:
    await broker.provision([])
    await PoolTable(broker.pools).change("team-a", lambda _: pool())
    await PoolTable(broker.pools).change("ended", lambda _: pool("ended", now=100.0))
    async with keeping(broker, clock) as table:
        await eventually(lambda: list(table.pools) == ["team-a"] and table.ready(table.pools["team-a"]))
