"""Jobs whose work was queued for another request of their key: they get its answer, whoever takes it or dies."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from sie_broker import subjects
from sie_broker.ending import end
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.records import Lane, Reply, Work
from sie_ingress.follow import Following, reply_of
from sie_ingress.parts import PART_ITEMS
from sie_sdk.calls import fresh_key
from tests.conftest import eventually
from tests.ingress.conftest import Desk, opened
from tests.ingress.test_requests import lengths


async def test_a_job_gets_the_answer_that_an_earlier_request_of_its_key_waits_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk.worker():
        desk.hold.clear()
        first = asyncio.create_task(desk.encode("twin", Idempotency_Key="k"))  # its caller may have gone meanwhile
        await eventually(lambda: len(desk.computed) == 1)
        warm = await desk.encode("twin", Idempotency_Key="k", Prefer="wait=0.05")
        with monkeypatch.context() as lost:
            lost.setattr(desk.lanes, "live", lambda lane: False)
            cold = await desk.encode("twin", Idempotency_Key="k")
        assert (warm.status_code, cold.status_code) == (202, 202)
        desk.hold.set()
        done = await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
        assert [lengths(each.json()) for each in (done, await first)] == [[4], [4]]
    assert len(desk.computed) == 1


async def test_a_job_gets_the_answer_that_a_later_request_of_its_key_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, waits, queued = fresh_key(), asyncio.Event(), desk.broker.queued

    async def looked(lane: Lane, sequence: int) -> bool:
        waits.set()
        return await queued(lane, sequence)

    monkeypatch.setattr(desk.broker, "queued", looked)
    async with desk.worker():
        desk.hold.clear()
        job = await desk.encode("twin", Idempotency_Key=key, Prefer="wait=0.05")
        assert job.status_code == 202
        later = asyncio.create_task(desk.encode("twin", Idempotency_Key=key))
        await waits.wait()
        desk.hold.set()
        assert lengths((await later).json()) == [4]
        assert lengths((await desk.client.get(job.headers["location"])).json()) == [4]
    assert len(desk.computed) == 1


async def test_a_repeat_whose_answer_went_to_another_ingress_is_computed_once_more(desk: Desk) -> None:
    async with desk.worker():
        await desk.encode("lost", Idempotency_Key="k")
    async with opened(desk.broker) as other:
        job = await other.encode("lost", Idempotency_Key="k")
        assert job.status_code == 202
        async with desk.worker():
            done = await other.client.get(job.headers["location"], headers={"Prefer": "wait=10"})
    assert lengths(done.json()) == [4]
    assert len(desk.computed) == 2


@pytest.mark.parametrize("works", [1, 2])
async def test_a_job_whose_answer_another_took_and_whose_ingress_died_says_so_and_a_repeat_has_it_done_anew(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    texts = ["twin"] * (PART_ITEMS * (works - 1) + 1)
    async with opened(desk.broker) as died, desk.worker():
        desk.hold.clear()
        held = asyncio.create_task(desk.encode(*texts, Idempotency_Key="k"))
        await eventually(lambda: len(desk.computed) == works)
        with monkeypatch.context() as killed:
            killed.setattr(Following, "begin", lambda *_: None)
            killed.setattr(died.lanes, "live", lambda _: False)
            job = await died.encode(*texts, Idempotency_Key="k")
        look = partial(desk.client.get, job.headers["location"])

        async def answered(status: int) -> bool:
            return (await look()).status_code == status

        assert job.status_code == 202 and await answered(202)
        desk.hold.set()
        assert lengths((await held).json()) == [4] * len(texts)
        await eventually(lambda: answered(503))  # once the worker has acknowledged what it answered
        missed = await look()
        assert (missed.status_code, missed.headers["retry-after"]) == (503, "5")
        assert "send the request again with its Idempotency-Key" in missed.json()["error"]["hint"]
        desk.hold.clear()
        repeat = await died.encode(*texts, Idempotency_Key="k", Prefer="wait=0.05")
        assert repeat.status_code == 202 and await answered(202)
        await eventually(lambda: len(desk.computed) == 2 * works)
        desk.hold.set()
        assert lengths((await look(headers={"Prefer": "wait=10"})).json()) == [4] * len(texts)
    assert len(desk.computed) == 2 * works


@pytest.mark.parametrize("works", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_a_job_whose_work_was_thrown_away_says_so_and_a_repeat_has_it_done_anew(
    nats_url: str, works: int, again: bool
) -> None:
    texts = ["old"] * (PART_ITEMS * (works - 1) + 1)
    broker = NatsBroker(nats_url, name="ingress-a")
    await broker.connect()
    async with opened(broker) as desk:
        job = await desk.encode(*texts, Idempotency_Key="k")
        look = partial(desk.client.get, job.headers["location"])
        for _ in range(1 + again):
            assert (await look()).status_code == 202
            await broker.nc.jetstream().purge_stream(subjects.stream("default"))  # as what is too old goes
            assert (await look()).json()["error"]["code"] == "UNAVAILABLE"
            repeats = await asyncio.gather(*(desk.encode(*texts, Idempotency_Key="k") for _ in range(2)))
            assert [repeat.headers["location"] for repeat in repeats] == [job.headers["location"]] * 2
        async with desk.worker():
            assert lengths((await desk.encode(*texts, Idempotency_Key="k")).json()) == [3] * len(texts)
            assert lengths((await look()).json()) == [3] * len(texts)
        assert len(desk.computed) == works
    await broker.close()


@pytest.mark.parametrize("ends", ["cancelled", "answered"])
async def test_who_follows_work_leaves_no_task_behind(ends: str) -> None:
    broker = MemoryBroker()
    work = Work("w", "encode", Lane(pool="p", bundle="b", profile="c"), "m", b"", time.time())
    receipt = await broker.submit(work)
    before = asyncio.all_tasks()
    with broker.expect("w") as (_, coming):
        following = asyncio.create_task(reply_of(broker, work, receipt.sequence, coming, look_s=3600))
        await eventually(lambda: len(asyncio.all_tasks() - before) == 2)  # itself, and who looks for a kept result
        if ends == "cancelled":
            await end(following)
        else:
            coming.set_result(Reply(id="w", data=b"it"))
            assert (await following) == Reply(id="w", data=b"it")
    assert asyncio.all_tasks() == before
