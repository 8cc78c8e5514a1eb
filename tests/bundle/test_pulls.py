"""What a worker pulls: what it has loaded and what is asked for, on both brokers, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import msgspec
import pytest

from sie_broker import jobs
from sie_broker.contract import Broker
from sie_broker.records import PRIORITIES, Lane, Queue, Work
from sie_bundle import pulls
from sie_bundle.pulls import WANTED_S, Pulls
from sie_bundle.worker import Worker
from sie_config.past_specs import REMEMBERED_S
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

LANE = lane_of(SPEC)
TEAM = Lane("team", LANE.bundle, LANE.profile)
SPECS = [msgspec.structs.replace(SPEC, id=f"org/m{number}") for number in range(20)]
PLANNED = msgspec.structs.replace(SPEC, id="org/planned", status="planned", blocked_by="a head")


class Standing:
    """Pulls of a worker that takes nothing; ``at`` is what its clock says, ``loaded`` the models it has."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.registry = Registry([*SPECS, PLANNED], clock=lambda: self.at)
        self.loaded: list[str] = []
        self.at = 0.0
        self.begun: list[Queue] = []
        self.fails = False
        self.pulls = Pulls(broker, self.registry, LANE, lambda: self.loaded, self._pull, lambda: self.at)

    async def _pull(self, queue: Queue) -> None:
        self.begun.append(queue)
        if self.fails:
            raise ValueError("no such consumer")
        await asyncio.Event().wait()

    @property
    def pulled(self) -> set[Queue]:
        return set(self.pulls.queues)


@pytest.fixture
async def standing(broker: Broker) -> AsyncIterator[Standing]:
    await broker.provision([(lane, spec.id) for spec in SPECS for lane in (LANE, TEAM)])
    made = Standing(broker)
    yield made
    await made.pulls.close()
    assert not made.pulled


def both(model: str, lane: Lane = LANE) -> set[Queue]:
    return {Queue(lane, model, priority) for priority in PRIORITIES}


def work(work_id: str, model: str, lane: Lane = LANE) -> Work:
    return Work(id=work_id, op="encode", lane=lane, model=model, data=b"", time=round(time.time(), 6))


async def test_of_a_large_catalogue_only_what_is_loaded_or_waits_is_pulled(standing: Standing) -> None:
    standing.loaded = ["org/m1"]
    await standing.broker.submit(work("a", "org/m7"))
    standing.pulls.start()
    await eventually(lambda: standing.pulled == {*both("org/m1"), Queue(LANE, "org/m7")})


async def test_what_somebody_wants_is_pulled_at_once_and_given_up_when_nobody_wants_it_any_more(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "LOOK_S", 3600.0)  # told, not found by looking
    standing.pulls.start()
    wanted = Queue(LANE, "org/m3", "bulk")

    async def told(queue: Queue, then: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not then():  # who does not listen yet is not told
                standing.broker.want(queue)
                await asyncio.sleep(0.01)

    await told(wanted, lambda: standing.pulled == {wanted})
    standing.at = WANTED_S - 1
    standing.pulls.update()
    assert standing.pulled == {wanted}
    standing.at = WANTED_S + 60
    standing.pulls.update()
    assert not standing.pulled
    await told(wanted, lambda: standing.pulled == {wanted})
    assert standing.begun == [wanted, wanted]


async def test_what_waits_is_found_within_a_look_when_nobody_tells(standing: Standing) -> None:
    standing.pulls.start()
    await standing.broker.submit(work("a", "org/m7"))
    await eventually(lambda: standing.pulled == {Queue(LANE, "org/m7")}, deadline_s=10)


async def test_a_model_that_was_let_go_is_pulled_until_everybody_has_heard_of_it(standing: Standing) -> None:
    standing.loaded = ["org/m1"]
    standing.pulls.start()
    assert standing.pulled == both("org/m1")
    standing.loaded = []
    standing.pulls.update()
    assert standing.pulled == both("org/m1")
    standing.at = WANTED_S
    standing.pulls.update()
    assert not standing.pulled


async def test_what_this_lane_does_not_serve_is_not_pulled_until_it_does(standing: Standing) -> None:
    standing.pulls.start()
    late = msgspec.structs.replace(SPEC, id="org/late")
    for model in (PLANNED.id, late.id, "org/m2"):
        standing.pulls.want(Queue(LANE, model))
    standing.pulls.want(Queue(TEAM, "org/m1"))
    assert standing.pulled == {Queue(LANE, "org/m2")}
    standing.registry.put(late)
    standing.registry.put(msgspec.structs.replace(PLANNED, status="ready"))
    standing.pulls.update()
    assert standing.pulled == {Queue(LANE, model) for model in ("org/m2", late.id, PLANNED.id)}


async def test_a_model_that_left_the_lane_for_good_is_not_pulled_though_it_is_still_loaded(standing: Standing) -> None:
    standing.loaded = ["org/m1", "org/m2"]
    standing.pulls.start()
    assert standing.pulled == both("org/m1") | both("org/m2")
    standing.registry.remove("org/m2")
    standing.pulls.update()
    assert standing.pulled == both("org/m1") | both("org/m2"), "some of its work may still wait"
    standing.at = REMEMBERED_S
    standing.pulls.update()
    assert standing.pulled == both("org/m1")


async def test_work_of_a_model_that_left_the_catalogue_is_still_taken(standing: Standing) -> None:
    await standing.broker.submit(work("a", "org/m7"))
    standing.registry.remove("org/m7")
    standing.pulls.start()
    await eventually(lambda: standing.pulled == {Queue(LANE, "org/m7")})


async def test_a_worker_that_moves_pulls_what_waits_in_its_new_pool_at_once(standing: Standing) -> None:
    standing.loaded = ["org/m1"]
    await standing.broker.submit(work("here", "org/m7"))
    await standing.broker.submit(work("there", "org/m8", TEAM))
    standing.pulls.start()
    await eventually(lambda: Queue(LANE, "org/m7") in standing.pulled)
    standing.pulls.move("team")
    assert standing.pulled == both("org/m1", TEAM)
    await eventually(lambda: standing.pulled == {*both("org/m1", TEAM), Queue(TEAM, "org/m8")})


async def test_a_pull_that_failed_is_begun_again(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "LOOK_S", 0.01)
    standing.loaded, standing.fails = ["org/m1"], True
    standing.pulls.start()
    await eventually(lambda: len(standing.begun) >= 6)
    standing.fails = False
    await eventually(lambda: standing.pulled == both("org/m1"))


@pytest.mark.parametrize("error", [QueueUnavailableError("The broker does not answer."), ValueError("no answer")])
async def test_a_look_that_fails_is_followed_by_the_next(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(pulls, "LOOK_S", 0.01)
    waiting, failed = standing.broker.waiting, 0

    async def failing(lane: Lane) -> Collection[Queue]:
        nonlocal failed
        failed += 1
        if failed <= 3:
            raise error
        return await waiting(lane)

    monkeypatch.setattr(standing.broker, "waiting", failing)
    await standing.broker.submit(work("a", "org/m7"))
    standing.pulls.start()
    await eventually(lambda: standing.pulled == {Queue(LANE, "org/m7")})


async def test_everything_of_a_large_catalogue_is_computed_once_however_it_is_found(broker: Broker) -> None:
    await broker.provision([(LANE, spec.id) for spec in SPECS])
    computed: list[str] = []

    async def compute(work: Work) -> bytes:
        computed.append(work.id)
        return b"done"

    @asynccontextmanager
    async def working(name: str) -> AsyncIterator[None]:
        worker = Worker(broker, Registry(SPECS), LANE, name, {"encode": compute}, list, max_in_hand=4)
        worker.start()
        yield
        await worker.drain(5)

    sent = [f"{spec.id}-{number}" for number in range(3) for spec in SPECS]
    for each in sent[: len(SPECS)]:
        await broker.submit(work(each, each.partition("-")[0]))
    async with working("a"), working("b"):
        for at, each in enumerate(sent[len(SPECS) :]):
            if at % 2:
                broker.want(Queue(LANE, each.partition("-")[0]))
            await broker.submit(work(each, each.partition("-")[0]))
        for each in sent:
            reply = await jobs.wait_result(broker.jobs, each, 20)
            assert reply is not None and reply.data == b"done"
    assert sorted(computed) == sorted(sent)
