"""A worker that changes its pool: told at once, nothing lost or computed twice, and what the pool pins is kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from sie_broker import jobs
from sie_broker.contract import Broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.pools import pool as pools
from sie_broker.pools.pool import Assignment
from sie_broker.records import Lane, Work
from sie_bundle import membership
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.membership import Membership
from sie_bundle.settings import Settings
from sie_bundle.worker import Worker
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import QueueUnavailableError
from tests import tiny_model
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC

HOME = lane_of(SPEC)
TEAM = msgspec.structs.replace(HOME, pool="team-a")


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(lane, MODEL) for lane in (HOME, TEAM)])
    return broker


def work(work_id: str, lane: Lane) -> Work:
    return Work(id=work_id, op="encode", lane=lane, model=MODEL, data=b"", time=round(time.time(), 6))


class Computed(Counter[str]):
    """Counts what is computed; ``gate`` keeps it from finishing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    def at_least(self, count: int) -> bool:
        return len(self) >= count

    async def __call__(self, work: Work) -> bytes:
        self[work.id] += 1
        await self.gate.wait()
        await asyncio.sleep(0.002)
        return b"done"


@asynccontextmanager
async def working(broker: Broker, computed: Computed, name: str = "w") -> AsyncIterator[Worker]:
    worker = Worker(broker, Registry([SPEC]), HOME, name, {"encode": computed}, loaded=lambda: [MODEL], max_in_hand=4)
    worker.start()
    try:
        yield worker
    finally:
        computed.gate.set()
        await worker.drain(10)


@asynccontextmanager
async def following(broker: Broker) -> AsyncIterator[list[Assignment | None]]:
    told: list[Assignment | None] = []
    task = asyncio.create_task(Membership(broker.pools, "host.name-1", told.append).follow())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def assign(broker: Broker, assignment: Assignment | None, worker: str = "host.name-1") -> None:
    if assignment is None:
        await broker.pools.delete(pools.worker_key(worker))
    else:
        await broker.pools.put(pools.worker_key(worker), pools.encode(assignment))


# -- being told --------------------------------------------------------------------------------------------------------


async def test_a_worker_hears_of_its_own_moves_and_of_no_others(ready: Broker) -> None:
    async with following(ready) as told:
        await assign(ready, Assignment("other"), "host.name-2")
        await assign(ready, Assignment("team-a", ("org/m",)))
        await eventually(lambda: told == [Assignment("team-a", ("org/m",))])
        await assign(ready, Assignment("team-a", ("org/m",)))
        await assign(ready, None)
        await eventually(lambda: told == [Assignment("team-a", ("org/m",)), None])


async def test_an_assignment_made_before_the_start_is_found(ready: Broker) -> None:
    await assign(ready, Assignment("team-a"))
    async with following(ready) as told:
        await eventually(lambda: told == [Assignment("team-a")])


async def test_a_bucket_that_does_not_answer_moves_nobody_and_is_asked_again(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "RETRY_S", 0.01)
    await assign(ready, Assignment("team-a"))
    answers, asked = ready.pools.get, asyncio.Event()

    async def silent(key: str) -> bytes | None:
        asked.set()
        raise QueueUnavailableError("no answer")

    monkeypatch.setattr(ready.pools, "get", silent)
    async with following(ready) as told:
        await asked.wait()
        assert told == []
        monkeypatch.setattr(ready.pools, "get", answers)
        await eventually(lambda: told == [Assignment("team-a")])


async def test_an_assignment_that_cannot_be_read_moves_nobody(ready: Broker) -> None:
    async with following(ready) as told:
        await assign(ready, Assignment("team-a"))
        await eventually(lambda: told == [Assignment("team-a")])
        await ready.pools.put(pools.worker_key("host.name-1"), b"{")
        await assign(ready, Assignment("team-b"))
        await eventually(lambda: told == [Assignment("team-a"), Assignment("team-b")])


# -- moving ------------------------------------------------------------------------------------------------------------


async def test_a_worker_that_moves_finishes_what_it_holds_and_pulls_only_from_its_new_pool(ready: Broker) -> None:
    computed = Computed()
    computed.gate.clear()
    async with working(ready, computed) as worker:
        await ready.submit(work("old", HOME))
        await eventually(lambda: computed == {"old": 1})
        worker.move("team-a")
        await ready.submit(work("left", HOME))
        await ready.submit(work("new", TEAM))
        await eventually(lambda: "new" in computed)
        computed.gate.set()
        for each in ("old", "new"):
            assert await jobs.wait_result(ready.jobs, each, 10) is not None
        assert computed == {"old": 1, "new": 1}
        worker.move("default")
        assert await jobs.wait_result(ready.jobs, "left", 10) is not None


async def test_a_worker_that_drains_is_not_moved_any_more(ready: Broker) -> None:
    computed = Computed()
    async with working(ready, computed) as worker:
        await worker.drain(5)
        worker.move("team-a")
        await ready.submit(work("new", TEAM))
    assert await jobs.wait_result(ready.jobs, "new", 0.3) is None


async def test_workers_that_change_their_pool_under_load_lose_nothing_and_compute_nothing_twice(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(lane, MODEL) for lane in (HOME, TEAM)])
    ids = [f"w{number}" for number in range(400)]
    computed = Computed()
    async with working(broker, computed, "one") as one, working(broker, computed, "two") as two:

        async def swap() -> None:
            """Each pool always has a worker, and every worker moves all the time."""
            turns = [("team-a", "default"), ("default", "team-a")]
            while True:
                for mine, yours in turns:
                    one.move(mine)
                    two.move(yours)
                    enough = min(len(ids), len(computed) + 60)
                    await eventually(partial(computed.at_least, enough), 60)
                if len(computed) == len(ids):
                    return

        swapping = asyncio.create_task(swap())
        for number, each in enumerate(ids):
            await broker.submit(work(each, (HOME, TEAM)[number % 2]))
        for each in ids:
            assert await jobs.wait_result(broker.jobs, each, 60) is not None, each
        await swapping
    assert set(computed) == set(ids)
    assert set(computed.values()) == {1}

    async def all_acknowledged() -> bool:
        return sum((await broker.backlog()).values()) == 0

    await eventually(all_acknowledged)
    await broker.close()


# -- a whole bundle ----------------------------------------------------------------------------------------------------


async def test_a_bundle_tells_whom_it_works_for_and_keeps_what_that_pool_pins(
    tiny_folder: Path, tmp_path: Path
) -> None:
    specs = [tiny_model.spec(tiny_folder, name) for name in ("test/own", "test/theirs", "test/other")]
    registry = Registry([*specs[:2], msgspec.structs.replace(specs[2], machine_profiles=("other",))])
    broker = MemoryBroker()
    settings = Settings(pinned_models="test/own", cache_dir=str(tmp_path), precision="float32")
    bundle = Bundle(broker, registry, settings, asyncio.Event())
    await bundle.start(Warming())
    try:
        me = bundle.presence.worker
        await eventually(lambda: bundle.presence.now().models == ("test/own",))
        await assign(broker, Assignment("team-a", ("test/theirs", "test/other", "no/such-model")), me)
        await eventually(lambda: set(bundle.residency.resident()) == {"test/own", "test/theirs"})
        now = bundle.presence.now()
        assert (now.lane.pool, now.home) == ("team-a", "default")
        assert not bundle.residency.relieve(), "both are pinned"
        await assign(broker, None, me)
        await eventually(lambda: bundle.presence.now().lane.pool == "default")
        await eventually(bundle.residency.relieve)  # once nothing that was loading it holds it any more
        assert bundle.residency.resident() == ("test/own",)
    finally:
        await bundle.drain()
