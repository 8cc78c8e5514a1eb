"""Whose turn it is: suspects alone and marked, those that killed last, those that were lost with others spared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sie_broker.memory import MemoryBroker, MemoryBucket
from sie_broker.records import Lane, Reply, Work
from sie_bundle import isolation
from sie_bundle.isolation import SUSPECT, Isolation, is_marked
from sie_bundle.worker import UNKNOWN_S, Worker
from sie_config.registry import Registry
from sie_sdk.errors import QueueFullError, QueueUnavailableError
from tests.conftest import eventually

LANE = Lane("default", "default", "cpu")


class Handed:
    """A delivery, for the little that is asked of it here."""

    def __init__(self, work_id: str, attempt: int = 1, requeues: int = 0, room: bool = True) -> None:
        self.work = Work(id=work_id, op="encode", lane=LANE, model="m", data=b"", time=0.0)
        self.attempt = attempt
        self.requeues = requeues
        self.sequence = 1
        self.requeued = 0
        self._room = room

    async def requeue(self) -> bool:
        self.requeued += 1
        return self._room

    async def reply(self, reply: Reply) -> None: ...
    async def ack(self) -> None: ...
    async def nak(self, delay: float = 0.0) -> None: ...
    async def term(self, reason: str) -> None: ...


class Away(MemoryBucket):
    """A bucket whose server does not answer."""

    async def get(self, key: str) -> bytes | None:
        raise QueueUnavailableError("away")

    async def put(self, key: str, value: bytes) -> None:
        raise QueueUnavailableError("away")

    async def delete(self, key: str) -> None:
        raise QueueUnavailableError("away")


class Stage:
    """Deliveries that are being computed, in the order in which they began, each until it is told to end."""

    def __init__(self, marks: MemoryBucket) -> None:
        self.isolation = Isolation(marks)
        self.marks = marks
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def hand(self, *deliveries: Handed) -> None:
        for delivery in deliveries:
            self._ends[delivery.work.id] = asyncio.Event()
            self._tasks[delivery.work.id] = asyncio.create_task(self._compute(delivery))

    async def _compute(self, delivery: Handed) -> None:
        async with self.isolation.of(delivery):
            self.began.append(delivery.work.id)
            await self._ends[delivery.work.id].wait()

    async def end(self, work_id: str) -> None:
        self._ends[work_id].set()
        await self._tasks[work_id]

    async def cancel(self, work_id: str) -> None:
        self._tasks[work_id].cancel()
        with suppress(asyncio.CancelledError):
            await self._tasks[work_id]

    async def run(self) -> list[str]:
        """End whatever begins until nothing is left; returns the order."""
        for ended in range(len(self._tasks)):
            await eventually(lambda ended=ended: len(self.began) > ended)  # type: ignore[misc]
            await self.end(self.began[ended])
        return self.began


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(isolation, "SETTLE_S", 0.02)
    monkeypatch.setattr(isolation, "LATE_S", 0.01)
    stage = Stage(MemoryBucket())
    yield stage
    for work_id in stage._tasks:
        await stage.cancel(work_id)


async def test_work_that_is_no_suspect_is_computed_together(stage: Stage) -> None:
    stage.hand(Handed("a"), Handed("b", attempt=2), Handed("c"))
    await eventually(lambda: sorted(stage.began) == ["a", "b", "c"])


async def test_a_suspect_waits_for_all_others_and_all_others_wait_for_it(stage: Stage) -> None:
    stage.hand(Handed("a"), Handed("b"))
    await eventually(lambda: len(stage.began) == 2)
    stage.hand(Handed("suspect", SUSPECT), Handed("c"))
    await stage.end("a")
    assert stage.began == ["a", "b"]
    await stage.end("b")
    await eventually(lambda: len(stage.began) == 3)
    assert stage.began[-1] == "suspect"
    assert await is_marked(stage.marks, "suspect")
    await stage.end("suspect")
    assert not await is_marked(stage.marks, "suspect")
    await eventually(lambda: stage.began[-1] == "c")


async def test_work_that_was_lost_once_lets_a_suspect_that_comes_with_it_go_first(stage: Stage) -> None:
    stage.hand(Handed("lost once", attempt=2), Handed("suspect", SUSPECT))
    assert await stage.run() == ["suspect", "lost once"]


async def test_suspects_go_one_at_a_time_and_who_has_fewest_deliveries_left_goes_first(stage: Stage) -> None:
    stage.hand(Handed("x"))
    await eventually(lambda: stage.began == ["x"])
    stage.hand(Handed("third", 3), Handed("fifth", 5), Handed("fourth", 4), Handed("normal"))
    assert await stage.run() == ["x", "fifth", "fourth", "third", "normal"]


async def test_what_was_being_computed_when_a_worker_was_lost_is_computed_last(stage: Stage) -> None:
    await stage.marks.put("suspect.poison", b"4")
    stage.hand(Handed("poison", 5), Handed("a", 4), Handed("b", 3))
    assert await stage.run() == ["a", "b", "poison"]


async def test_what_was_queued_anew_is_a_suspect_from_its_first_delivery(stage: Stage) -> None:
    stage.hand(Handed("a"))
    await eventually(lambda: stage.began == ["a"])
    stage.hand(Handed("anew", 1, requeues=1))
    await asyncio.sleep(0)
    assert stage.began == ["a"]
    assert await stage.run() == ["a", "anew"]


@pytest.mark.parametrize(
    ("delivery", "marked", "spared"),
    [
        (Handed("w", SUSPECT), False, False),
        (Handed("w", SUSPECT + 1), False, True),
        (Handed("w", SUSPECT + 1), True, False),
        (Handed("w", SUSPECT + 1, room=False), False, False),
        (Handed("w", SUSPECT + 2), False, True),
    ],
)
async def test_who_was_lost_with_others_and_never_tried_alone_gets_its_deliveries_back(
    stage: Stage, delivery: Handed, marked: bool, spared: bool
) -> None:
    if marked:
        await stage.marks.put("suspect.w", b"3")
    assert await stage.isolation.spared(delivery) == spared
    assert stage.isolation.free


async def test_nothing_begins_while_somebody_is_spared(stage: Stage) -> None:
    writing = asyncio.Event()

    class Slow(Handed):
        async def requeue(self) -> bool:
            await writing.wait()
            return True

    sparing = asyncio.create_task(stage.isolation.spared(Slow("w", 4)))
    await eventually(lambda: not stage.isolation.free)
    stage.hand(Handed("a"), Handed("suspect", 3))
    await asyncio.sleep(0.02)
    assert stage.began == []
    writing.set()
    assert await sparing
    assert sorted(await stage.run()) == ["a", "suspect"]


async def test_a_suspect_that_is_cancelled_while_it_waits_lets_others_go(stage: Stage) -> None:
    stage.hand(Handed("a"))
    await eventually(lambda: stage.began == ["a"])
    stage.hand(Handed("suspect", 3), Handed("b"))
    await asyncio.sleep(0)
    await stage.cancel("suspect")
    await eventually(lambda: stage.began == ["a", "b"])


async def test_a_suspect_that_hangs_keeps_nobody_waiting_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "PATIENCE_S", 0.05)
    stage.hand(Handed("hangs", 3), Handed("a"), Handed("another", 3))
    await eventually(lambda: sorted(stage.began) == ["a", "another", "hangs"])
    monkeypatch.setattr(isolation, "PATIENCE_S", 3600)
    stage.hand(Handed("b"))
    await eventually(lambda: "b" in stage.began)
    for each in ("hangs", "another", "a", "b"):
        await stage.end(each)
    stage.hand(Handed("c", 3), Handed("d"))
    await eventually(lambda: stage.began[-1] == "c")
    assert not stage.isolation.free


async def test_after_a_requeue_that_took_too_long_suspects_are_alone_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = asyncio.Event()

    class Slow(Handed):
        async def requeue(self) -> bool:
            return await written.wait()

    monkeypatch.setattr(isolation, "PATIENCE_S", 0.05)
    sparing = asyncio.create_task(stage.isolation.spared(Slow("w", 4)))
    await eventually(lambda: not stage.isolation.free)
    stage.hand(Handed("a"))
    await eventually(lambda: stage.began == ["a"])
    monkeypatch.setattr(isolation, "PATIENCE_S", 3600)
    written.set()
    assert await sparing
    stage.hand(Handed("suspect", 3), Handed("b"))
    await eventually(lambda: bool(stage.isolation.suspects))
    assert not stage.isolation.free and not stage.isolation.suspects[0].is_next()
    assert await stage.run() == ["a", "suspect", "b"]


async def test_while_the_broker_is_away_suspects_are_computed_without_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "SETTLE_S", 0.02)
    stage = Stage(Away())
    stage.hand(Handed("a", 3), Handed("b", 5), Handed("c"))
    assert sorted(await stage.run()) == ["a", "b", "c"]


class Full(MemoryBucket):
    """A bucket without room."""

    async def put(self, key: str, value: bytes) -> None:
        raise QueueFullError("full", retry_after=1.0)


async def test_a_suspect_is_computed_without_a_mark_where_there_is_no_room_for_one() -> None:
    stage = Stage(Full())
    stage.hand(Handed("suspect", SUSPECT))
    assert await stage.run() == ["suspect"]


async def test_work_on_whose_way_something_goes_wrong_is_given_back() -> None:
    class GivenBack(Handed):
        async def nak(self, delay: float = 0.0) -> None:
            delays.append(delay)

    class Odd(MemoryBucket):
        async def get(self, key: str) -> bytes | None:
            raise RuntimeError("nobody expects this")

    delays: list[float] = []
    broker = MemoryBroker()
    worker = Worker(broker, Registry(), LANE, "w", {}, loaded=tuple, max_in_hand=4)
    worker._isolation.marks = Odd()
    await worker._handle(GivenBack("odd", attempt=SUSPECT + 1))
    assert delays == [UNKNOWN_S]
