"""How much is pulled: a stated bound in hand, a busy queue at full rate, nobody kept waiting by who cannot serve."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
from nats.aio.client import Client

from sie_broker import subjects
from sie_broker.contract import Delivery
from sie_broker.jetstream import pull
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.pull import BUSY_S, MOST, STANDING, STANDING_S, Ask
from sie_broker.jetstream.streams import Limits
from sie_broker.records import Lane, Queue, Work
from sie_broker.room import Room
from tests.conftest import eventually

LANE = Lane("default", "default", "cpu")
ROOM = 64


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(nats_url, name="test", limits=Limits(ack_wait_s=1))
    await broker.connect()
    yield broker
    await broker.close()


class Pod:
    """A worker's pulls, and what it has in hand. ``serve`` None: it takes work and never finishes it."""

    def __init__(self, broker: NatsBroker, rank: int, capacity: int, serve_s: float | None) -> None:
        self.room = Room(capacity)
        self.got: Counter[str] = Counter()
        self.order: list[str] = []
        self.attempts: list[int] = []
        self.most = 0
        self._broker = broker
        self._rank = rank
        self._serve_s = serve_s
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def pulling(self, *models: str) -> AsyncIterator[Pod]:
        pulls = [asyncio.create_task(self._pull(model)) for model in models]
        try:
            yield self
        finally:
            for task in [*pulls, *self._tasks]:
                task.cancel()
            for task in pulls:
                with suppress(asyncio.CancelledError):
                    await task

    async def _pull(self, model: str) -> None:
        async with aclosing(self._broker.pull(Queue(LANE, model), self.room, lambda: self._rank)) as deliveries:
            async for delivery in deliveries:
                self.room.take()
                self.most = max(self.most, self.room.taken)
                self.got[model] += 1
                self.order.append(delivery.work.id)
                self.attempts.append(delivery.attempt)
                if self._serve_s is not None:
                    task = asyncio.create_task(self._serve(delivery, self._serve_s))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _serve(self, delivery: Delivery, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await delivery.ack()
        self.room.leave()


async def submit(broker: NatsBroker, model: str, count: int, prefix: str = "") -> None:
    await asyncio.gather(
        *(
            broker.submit(Work(f"{prefix}{model}-{i}", "encode", LANE, model, b"", round(time.time(), 6)))
            for i in range(count)
        )
    )


async def asking(broker: NatsBroker, model: str, pulls: int) -> None:
    """Return when the server has the requests of so many pulls."""
    consumer = subjects.stream("default"), subjects.consumer(Queue(LANE, model))
    end = time.monotonic() + 10
    while (await broker.nc.jetstream().consumer_info(*consumer)).num_waiting != pulls:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("rank", [0, 5])
async def test_thirty_busy_models_put_no_more_in_hand_than_the_room_and_what_stands_of_each(
    broker: NatsBroker, rank: int
) -> None:
    models = [f"m{i}" for i in range(30)]
    await broker.provision([(LANE, model) for model in models])
    pod = Pod(broker, rank, ROOM, serve_s=0.005)
    async with pod.pulling(*models):
        await asyncio.gather(*(submit(broker, model, 2000 // len(models) + 1) for model in models))
        await eventually(lambda: pod.got.total() == 30 * 67 and not pod.room.taken, 60)
    assert pod.most <= ROOM + len(models) * STANDING[rank == 0]
    assert set(pod.got.values()) == {67}


async def test_a_backlog_that_is_there_already_fills_the_room_and_hardly_more(broker: NatsBroker) -> None:
    models = [f"m{i}" for i in range(10)]
    await broker.provision([(LANE, model) for model in models])
    await asyncio.gather(*(submit(broker, model, 100) for model in models))
    pod = Pod(broker, 5, ROOM, serve_s=None)
    async with pod.pulling(*models):
        await eventually(lambda: pod.room.taken >= ROOM)
        await asyncio.sleep(2 * BUSY_S)
    assert ROOM <= pod.most <= ROOM + len(models)


async def test_one_busy_model_is_pulled_many_at_a_time(broker: NatsBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.provision([(LANE, "m")])
    await submit(broker, "m", 1000)
    asks: list[int] = []
    send = pull._send

    async def counted(nc: Client, subject: str, inbox: str, ask: Ask, rank: int) -> bool:
        asks.append(ask.count)
        return await send(nc, subject, inbox, ask, rank)

    monkeypatch.setattr(pull, "_send", counted)
    pod = Pod(broker, 0, ROOM, serve_s=0.0)
    async with pod.pulling("m"):
        await eventually(lambda: pod.got.total() == 1000, 30)
    assert 0 < len(asks) < 1000 / 8


async def test_a_queue_that_rests_keeps_one_request_and_no_place_of_the_room(broker: NatsBroker) -> None:
    await broker.provision([(LANE, "busy"), (LANE, "resting")])
    pod = Pod(broker, 0, 8, serve_s=None)
    async with pod.pulling("busy", "resting"):
        await submit(broker, "busy", 20)
        await eventually(lambda: pod.room.taken >= 8)
        assert pod.got["busy"] <= 8 + STANDING[True]
        # The room is full, but the other's request stands since before.
        await submit(broker, "resting", 1)
        await eventually(lambda: pod.got["resting"] == 1)


async def test_work_of_one_model_does_not_wait_for_the_backlog_of_another(broker: NatsBroker) -> None:
    await broker.provision([(LANE, "busy"), (LANE, "other")])
    backlog = 1200  # seconds of work for the pod, and each request beside it takes milliseconds
    await submit(broker, "busy", backlog)
    pod = Pod(broker, 0, 16, serve_s=0.05)
    async with pod.pulling("busy", "other"):
        await eventually(lambda: pod.got["busy"] > 50)
        for number in range(5):
            await submit(broker, "other", 1, prefix=f"{number}-")
            await eventually(lambda number=number: f"{number}-other-0" in pod.order)  # type: ignore[misc]
            assert pod.got["busy"] < backlog


async def test_work_goes_to_who_holds_the_model_and_to_others_once_those_are_full(broker: NatsBroker) -> None:
    await broker.provision([(LANE, "m")])
    holder, other = Pod(broker, 0, 8, serve_s=None), Pod(broker, 5, 8, serve_s=0.0)
    async with holder.pulling("m"), other.pulling("m"):
        await asking(broker, "m", 2)
        await submit(broker, "m", 1)
        await eventually(lambda: holder.got["m"] == 1)
        await submit(broker, "m", 40, prefix="more-")
        await eventually(lambda: holder.got["m"] + other.got["m"] == 41)
    assert 1 <= holder.got["m"] <= 8 + STANDING[True]


async def test_a_holder_that_stands_still_keeps_little_and_not_for_longer_than_a_lease(
    nats_url: str, broker: NatsBroker
) -> None:
    await broker.provision([(LANE, "m")])
    stopped = NatsBroker(nats_url, name="stopped")
    await stopped.connect()
    other = Pod(broker, 5, 8, serve_s=0.0)
    # What it asks for fills its room: it does not ask again, as one that really stands still would not.
    frozen = Pod(stopped, 0, STANDING[True], serve_s=None)
    try:
        async with frozen.pulling("m"):
            await asking(broker, "m", 1)
            await stopped.duties.end()  # nobody renews its leases any more
            async with other.pulling("m"):
                await submit(broker, "m", 60)
                await eventually(lambda: len(set(other.order)) == 60, 20)
            assert frozen.got["m"] == STANDING[True]
    finally:
        await stopped.close()


class Watched(Room):
    """Room that counts how often a pull has looked for a place."""

    looks = 0

    async def wait(self) -> None:
        self.looks += 1
        await super().wait()


async def test_what_a_server_still_sends_for_a_request_that_was_given_up_does_not_wait_for_a_lease(
    nats_url: str, broker: NatsBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "HEARTBEAT_S", 0.25)
    await broker.provision([(LANE, "m")])
    (server,) = (int(path.stem.rpartition("_")[2]) for path in (tmp_path / "nats").glob("*.ports"))
    gives_up = NatsBroker(nats_url, name="gives-up")
    await gives_up.connect()
    pod, other = Pod(gives_up, 0, 4, serve_s=None), Pod(broker, 5, 4, serve_s=0.0)
    pod.room = room = Watched(4)
    async with pod.pulling("m"):
        await asking(broker, "m", 1)
        for _ in range(4):  # its other models have work
            room.take()
        os.kill(server, signal.SIGSTOP)
        try:
            await eventually(lambda: room.looks == 2)
        finally:
            os.kill(server, signal.SIGCONT)
        await gives_up.nc.flush()
        await submit(broker, "m", 1)
        async with other.pulling("m"):
            await eventually(lambda: other.got["m"] == 1)
        assert other.attempts == [1]
    await gives_up.close()


@pytest.mark.parametrize(
    ("ask", "took_s", "wanted"),
    [
        (Ask(4, STANDING_S, False), 30.0, 0),
        (Ask(4, STANDING_S, False, arrived=3), 30.0, 0),
        (Ask(4, STANDING_S, False, arrived=1, waiting=70), 0.1, 70),
        (Ask(4, STANDING_S, False, arrived=4), 0.1, 8),
        (Ask(4, STANDING_S, False, arrived=4), 20.0, 0),
        (Ask(16, BUSY_S, True, arrived=16, waiting=5), 0.1, 32),
        (Ask(16, BUSY_S, True, arrived=16, waiting=9000), 0.1, MOST),
        (Ask(16, BUSY_S, True, arrived=3), 1.01, 3),
        (Ask(16, BUSY_S, True), 1.01, 0),
    ],
)
def test_what_came_of_a_request_says_how_much_to_ask_for_next(ask: Ask, took_s: float, wanted: int) -> None:
    assert ask.busy(took_s) == wanted


async def test_places_are_set_aside_as_long_as_there_are_any() -> None:
    room = Room(8)
    assert await room.reserve(100) == 8
    waiting = asyncio.create_task(room.reserve(100))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.release(4)
    assert await waiting == 2, "half of what the others left"
    room.take()
    assert await room.reserve(100) == 1
    blocked = asyncio.create_task(room.reserve(1))
    await asyncio.sleep(0)
    assert not blocked.done()
    room.leave()
    assert await blocked == 1
