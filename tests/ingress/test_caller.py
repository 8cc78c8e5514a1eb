"""A caller that hangs up takes its work along, if nobody else can ask for it: over real connections, both brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from sie_broker import jobs, process
from sie_broker.claim import REPLY_INLINE_BYTES
from sie_broker.contract import Broker
from sie_broker.records import Work
from sie_config.registry import lane_of
from sie_ingress import caller
from sie_ingress.caller import ANYBODY, Caller
from sie_ingress.parts import PART_ITEMS
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, ROUTE, SPEC, Desk, opened
from tests.ingress.test_requests import lengths

LANE = lane_of(SPEC)


class Line:
    """One request on a connection of its own, which can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def send(self, body: object, route: str = ROUTE, **headers: str) -> None:
        _, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._request(body, route, **headers))
        await self._writer.drain()

    def _request(self, body: object, route: str, **headers: str) -> bytes:
        data = json.dumps(body).encode()
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        return f"{head}{named}\r\n".encode() + data

    async def send_also(self, body: object) -> None:
        """Another request on the same connection."""
        self._writer.write(self._request(body, ROUTE))
        await self._writer.drain()

    def cut(self) -> None:
        self._writer.transport.abort()


def texts(*texts: str) -> dict[str, Any]:
    return {"items": [{"text": text} for text in texts]}


class Stage:
    """An ingress on a port. ``given_up``: the works whose computation was cancelled."""

    def __init__(self, desk: Desk, port: int) -> None:
        self.desk = desk
        self.port = port
        self.given_up: list[str] = []

    async def compute(self, work: Work) -> bytes:
        try:
            return await self.desk.count(work)
        except asyncio.CancelledError:
            self.given_up.append(work.id)
            raise

    async def asked(self, body: object, **more: str) -> Line:
        line = Line(self.port)
        await line.send(body, **more)
        return line

    async def at_rest(self) -> bool:
        return await self.desk.broker.backlog() in ({}, {LANE: 0})

    async def counted(self, operation: str = "encode") -> float:
        """How many callers of an operation have hung up, by the metrics."""
        page = (await self.desk.client.get("/metrics")).text
        name = f'sie_ingress_requests_total{{code="CANCELLED",operation="{operation}"}} '
        return sum(float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


@pytest.fixture
async def stage(broker: Broker) -> AsyncIterator[Stage]:
    async with opened(broker) as desk, process.serving(desk.ingress, "127.0.0.1", 0, drain_s=1) as port:
        yield Stage(desk, port)


@pytest.mark.parametrize(
    ("route", "body", "operation"),
    [
        (ROUTE, texts("gone"), "encode"),
        ("/v1/embeddings", {"model": MODEL, "input": "gone"}, "embeddings"),
    ],
)
async def test_work_in_hand_is_given_up_when_its_caller_hangs_up(
    stage: Stage, route: str, body: object, operation: str
) -> None:
    async with stage.desk.worker(stage.compute) as worker:
        stage.desk.hold.clear()
        line = await stage.asked(body, route=route)
        await eventually(lambda: len(stage.desk.computed) == 1)
        line.cut()
        await eventually(lambda: stage.given_up == stage.desk.computed and worker.in_hand == 0)
        await eventually(stage.at_rest)
        assert await stage.counted(operation) == 1
        stage.desk.hold.set()
        assert lengths((await stage.desk.encode("next")).json()) == [4]
    assert len(stage.desk.computed) == 2


async def test_work_that_waits_is_never_begun_when_its_caller_hangs_up(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        before = [asyncio.create_task(stage.desk.encode(f"{number}")) for number in range(8)]  # its hands are full
        await eventually(lambda: len(stage.desk.computed) == 8)
        lines = [await stage.asked(texts("gone", "gone")) for _ in range(5)]

        async def waiting() -> int:
            return (await stage.desk.broker.backlog())[LANE]

        async def is_queued() -> bool:
            return await waiting() == 13

        async def is_gone() -> bool:
            return await waiting() == 8

        await eventually(is_queued)
        for line in lines:
            line.cut()
        await eventually(is_gone)
        stage.desk.hold.set()
        assert [(await each).status_code for each in before] == [200] * 8
        assert lengths((await stage.desk.encode("next")).json()) == [4]
    assert (len(stage.desk.computed), stage.given_up) == (9, [])
    assert await stage.counted() == 5


async def test_of_a_request_in_parts_every_part_is_withdrawn(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        line = await stage.asked(texts(*["gone"] * (2 * PART_ITEMS + 1)))
        await eventually(lambda: len(stage.desk.computed) == 3)
        line.cut()
        await eventually(lambda: sorted(stage.given_up) == sorted(stage.desk.computed))
        await eventually(stage.at_rest)


async def test_of_a_request_in_parts_nothing_is_kept_of_those_that_were_answered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, dropped = list[str](), list[str]()
    payloads, first = stage.desk.broker.payloads, "0" * (REPLY_INLINE_BYTES + 1)
    store, drop = payloads.store, payloads.drop

    async def storing(*given: Any) -> str:
        stored.append(address := await store(*given))
        return address

    async def dropping(address: str) -> None:
        await drop(address)
        dropped.append(address)

    monkeypatch.setattr(payloads, "store", storing)
    monkeypatch.setattr(payloads, "drop", dropping)

    async def compute(work: Work) -> bytes:
        return first.encode() if work.id.endswith("-0") else await stage.compute(work)

    async with stage.desk.worker(compute):
        stage.desk.hold.clear()
        line = await stage.asked(texts(*["gone"] * (PART_ITEMS + 1)))
        await eventually(lambda: len(stored) == len(stage.desk.computed) == 1)
        line.cut()
        await eventually(lambda: dropped == stored)
        stage.desk.hold.set()


async def test_who_hangs_up_with_another_request_under_way_is_noticed(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        line = await stage.asked(texts("first"))
        await eventually(lambda: len(stage.desk.computed) == 1)
        await line.send_also(texts("second"))  # which is to wait until the first is answered
        line.cut()
        await eventually(lambda: stage.given_up == stage.desk.computed)
        await eventually(stage.at_rest)


async def test_a_request_with_a_key_is_kept_for_its_repeat(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        line = await stage.asked(texts("kept"), Idempotency_Key="k")
        await eventually(lambda: len(stage.desk.computed) == 1)
        line.cut()
        repeat = asyncio.create_task(stage.desk.encode("kept", Idempotency_Key="k"))
        await asyncio.sleep(2 * caller.WATCHED_AFTER_S)  # by then it would be noticed
        stage.desk.hold.set()
        assert lengths((await repeat).json()) == [4]
    assert (len(stage.desk.computed), stage.given_up) == (1, [])


async def test_others_who_wait_for_the_same_are_answered_whoever_of_them_hangs_up(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        first = await stage.asked(texts("twin"), Idempotency_Key="k")
        await eventually(lambda: len(stage.desk.computed) == 1)
        stays = asyncio.create_task(stage.desk.encode("twin", Idempotency_Key="k"))
        last = await stage.asked(texts("twin"), Idempotency_Key="k")
        first.cut()
        last.cut()
        await asyncio.sleep(2 * caller.WATCHED_AFTER_S)
        stage.desk.hold.set()
        assert lengths((await stays).json()) == [4]
    assert (len(stage.desk.computed), stage.given_up) == (1, [])


async def test_a_job_whose_id_was_told_is_not_the_connection_s(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        told = await stage.desk.encode("job", Prefer="wait=0")
        line = await stage.asked(texts("late"), Prefer="wait=0.2")
        await eventually(lambda: len(stage.desk.computed) == 2)
        late = stage.desk.computed[1]

        async def is_job() -> bool:
            return await jobs.find(stage.desk.broker.jobs, late) is not None

        await eventually(is_job)
        line.cut()
        stage.desk.hold.set()
        done = await stage.desk.client.get(told.headers["location"], headers={"Prefer": "wait=10"})
        assert lengths(done.json()) == [3]
        assert (await stage.desk.client.get(f"/v1/jobs/{late}", headers={"Prefer": "wait=10"})).status_code == 200
    assert stage.given_up == []


async def test_who_hangs_up_while_no_worker_is_there_leaves_nothing_for_the_first(stage: Stage) -> None:
    line = await stage.asked(texts("cold"), Prefer="wait=10")

    async def has_job() -> bool:
        return bool(await stage.desk.broker.jobs.entries("job."))

    async def has_none() -> bool:
        return not await has_job()

    await eventually(has_job)
    line.cut()
    await eventually(has_none)
    await eventually(stage.at_rest)
    async with stage.desk.worker():
        assert lengths((await stage.desk.encode("next")).json()) == [4]
    assert len(stage.desk.computed) == 1


async def test_an_event_is_computed_whoever_sent_it(stage: Stage) -> None:
    async with stage.desk.worker(stage.compute):
        stage.desk.hold.clear()
        event = {"ce_specversion": "1.0", "ce_id": "e", "ce_source": "/x", "ce_type": "dev.sie.encode.v1"}
        line = await stage.asked(texts("event"), route="/v1/events", **event, ce_model=MODEL, Prefer="wait=10")
        await eventually(lambda: len(stage.desk.computed) == 1)
        line.cut()
        await asyncio.sleep(2 * caller.WATCHED_AFTER_S)
        stage.desk.hold.set()
        await eventually(stage.at_rest)
    assert stage.given_up == []


async def test_a_caller_is_watched_only_where_it_is_held_and_told_of_once_it_has_left() -> None:
    asked, woken = 0, list[str]()
    leaves = asyncio.Event()

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        await leaves.wait()
        return {"type": "http.disconnect"}

    quick, held = Caller(receive), Caller(receive)
    with quick.watched():
        await asyncio.sleep(0)
    with held.watched():
        held.on_left(lambda: woken.append("before"))
        await eventually(lambda: asked == 1)
        leaves.set()
        await eventually(lambda: held.left)
        held.on_left(lambda: woken.append("after"))
    assert (woken, quick.left, asked) == (["before", "after"], False, 1)
    with ANYBODY.watched():
        ANYBODY.on_left(lambda: woken.append("never"))
    assert not ANYBODY.left
