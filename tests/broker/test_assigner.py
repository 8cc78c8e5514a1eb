"""The assigner's loop on both brokers: workers are told at once, and go home when a lease has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest

from sie_broker import workers
from sie_broker.contract import Broker
from sie_broker.pools import assigner
from sie_broker.pools.assigner import Assigner
from sie_broker.pools.pool import Assignment, Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, WorkerState
from tests.conftest import eventually

HOME = Lane("default", "default", "cpu")
TEAM = Lane("team-a", "default", "cpu")


class Scene:
    """A broker with an assigner at work, and what it is told and asked."""

    def __init__(self, broker: Broker, table: PoolTable) -> None:
        self.broker = broker
        self.table = table
        self.pods: dict[Lane, int] = {}
        self.working: set[Lane] = set()
        self.ahead_s = 0.0

    def clock(self) -> float:
        """The wall clock, or later."""
        return time.time() + self.ahead_s

    async def create(self, name: str = "team-a", *, minimum: int = 1, pinned: tuple[str, ...] = ()) -> None:
        """A pool for ten minutes."""
        now = self.clock()
        pool = Pool(name, {"cpu": 2}, now, now, 600.0, minimum=minimum, pinned_models=pinned)
        await self.table.change(name, lambda _: pool)

    async def beat(self, worker: str, lane: Lane = HOME, home: str = "default", **more: object) -> None:
        state = WorkerState(worker, lane, "ready", self.clock(), home=home)
        state = msgspec.structs.replace(state, **more)
        await self.broker.presence.put(worker, msgspec.msgpack.encode(state))

    def told(self) -> dict[str, str]:
        return {worker: assignment.pool for worker, assignment in self.table.assigned.items()}


@contextmanager
def running(*tasks: asyncio.Task[None]) -> Iterator[None]:
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def assigning(broker: Broker) -> AsyncIterator[Scene]:
    await broker.provision([])
    table = PoolTable(broker.pools)
    scene = Scene(broker, PoolTable(broker.pools))
    loop = Assigner(broker, table, lambda: scene.pods, lambda: scene.working, look_s=0.02, clock=scene.clock)
    with running(
        asyncio.create_task(table.follow(loop.look)),
        asyncio.create_task(scene.table.follow()),
        asyncio.create_task(loop.run()),
    ):
        yield scene


async def test_a_worker_is_given_to_a_pool_that_keeps_one_and_told_what_to_keep_loaded(broker: Broker) -> None:
    async with assigning(broker) as scene:
        await scene.create(pinned=("org/m",))
        await scene.beat("w1")
        await eventually(lambda: scene.table.assigned == {"w1": Assignment("team-a", ("org/m",))})


async def test_a_worker_that_was_there_before_the_pool_is_given_to_it(broker: Broker) -> None:
    async with assigning(broker) as scene:
        await scene.beat("w1")
        await scene.create()
        await eventually(lambda: scene.told() == {"w1": "team-a"})


async def test_workers_go_home_when_the_lease_has_ended(broker: Broker) -> None:
    async with assigning(broker) as scene:
        await scene.beat("w1")
        await scene.create()
        await eventually(lambda: scene.told() == {"w1": "team-a"})
        scene.ahead_s = 600.0
        await scene.beat("w1", TEAM)
        await eventually(lambda: scene.told() == {})


async def test_workers_stay_with_a_pool_whose_lease_has_ended_while_it_asks_for_them(broker: Broker) -> None:
    async with assigning(broker) as scene:
        scene.pods[TEAM] = 1
        await scene.beat("w1")
        await scene.create(minimum=2)
        await eventually(lambda: scene.told() == {"w1": "team-a"})
        scene.ahead_s = 600.0
        for name in ("w1", "w2", "w3"):
            await scene.beat(name)
        await scene.create("team-b")
        await eventually(lambda: sorted(scene.told().values()) == ["team-a", "team-b"])
        scene.pods[TEAM] = 0
        await eventually(lambda: [*scene.told().values()] == ["team-b"])


async def test_a_pool_that_asks_for_more_gets_more_up_to_its_capacity(broker: Broker) -> None:
    async with assigning(broker) as scene:
        for name in ("w1", "w2", "w3"):
            await scene.beat(name)
        await scene.create(minimum=0)
        scene.pods[TEAM] = 3
        await eventually(lambda: len(scene.told()) == 2)


async def test_the_only_worker_goes_to_and_fro_with_the_work(broker: Broker) -> None:
    async with assigning(broker) as scene:
        scene.pods |= {HOME: 1, TEAM: 1}
        await scene.beat("w1")
        await scene.create(minimum=0)
        for _ in range(2):
            scene.working = {TEAM}
            await eventually(lambda: scene.told() == {"w1": "team-a"})
            scene.working = {HOME}
            await eventually(lambda: scene.told() == {})


async def test_an_idle_worker_is_moved_before_a_busy_one_and_stays_where_it_was_moved_to(broker: Broker) -> None:
    async with assigning(broker) as scene:
        await scene.beat("w1", in_flight=3)
        await scene.beat("w2")
        await scene.create()
        await eventually(lambda: bool(scene.told()))
        assert scene.told() == {"w2": "team-a"}
        await scene.beat("w1")
        await scene.create("team-b")
        await eventually(lambda: len(scene.told()) == 2)
        assert scene.told() == {"w1": "team-b", "w2": "team-a"}


async def test_a_worker_of_another_home_or_bundle_or_one_that_drains_is_left_alone(broker: Broker) -> None:
    async with assigning(broker) as scene:
        await scene.beat("gold", Lane("gold", "default", "cpu"), home="gold")
        await scene.beat("other", Lane("default", "other", "cpu"))
        await scene.beat("leaving", state="draining")
        await scene.create(minimum=2)
        await scene.beat("w1")
        await eventually(lambda: bool(scene.told()))
        assert scene.told() == {"w1": "team-a"}


async def test_a_worker_that_falls_silent_is_replaced_and_its_assignment_forgotten(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STALE_S", 0.5)
    monkeypatch.setattr(assigner, "FORGOTTEN_S", 1.0)
    async with assigning(broker) as scene:
        await scene.create()
        await scene.beat("w1")
        await eventually(lambda: scene.told() == {"w1": "team-a"})

        async def beat() -> None:
            while True:
                await scene.beat("w2")
                await asyncio.sleep(0.1)

        with running(asyncio.create_task(beat())):
            await eventually(lambda: scene.told().get("w2") == "team-a")
            await eventually(lambda: scene.told() == {"w2": "team-a"})


async def test_an_assignment_to_a_pool_that_is_gone_is_taken_back(broker: Broker) -> None:
    await broker.provision([])
    await PoolTable(broker.pools).assign("w1", Assignment("gone"))
    async with assigning(broker) as scene:
        await eventually(lambda: scene.told() == {"w1": "gone"})
        await scene.beat("w1", Lane("gone", "default", "cpu"))
        await eventually(lambda: scene.told() == {})
