"""A key stands for one request: with another it is refused, whatever has become of the first and wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from sie_broker.jetstream.nats_broker import NatsBroker
from sie_ingress.parts import PART_ITEMS
from sie_sdk.calls import fresh_key
from tests.conftest import eventually
from tests.ingress.conftest import Desk, opened
from tests.ingress.test_requests import lengths

SMALL, MANY = ("one",), ("two",) * (PART_ITEMS + 1)
KEYS = pytest.mark.parametrize("a_key", [lambda: "k", fresh_key], ids=["any key", "fresh key"])


def mismatches(answer: httpx.Response) -> bool:
    return answer.status_code == 422 and answer.json()["error"]["code"] == "IDEMPOTENCY_MISMATCH"


async def job_of(desk: Desk, answer: httpx.Response) -> list[float]:
    done = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})
    return lengths(done.json())


@KEYS
@pytest.mark.parametrize(("first", "second"), [(SMALL, ("two",)), (SMALL, MANY), (MANY, SMALL)])
async def test_another_request_is_refused_while_the_first_is_computed(
    desk: Desk, first: tuple[str, ...], second: tuple[str, ...], a_key: Callable[[], str]
) -> None:
    key = a_key()
    async with desk.worker():
        desk.hold.clear()
        waiting = asyncio.create_task(desk.encode(*first, Idempotency_Key=key))
        await eventually(lambda: bool(desk.computed))
        assert mismatches(await desk.encode(*second, Idempotency_Key=key))
        desk.hold.set()
        assert lengths((await waiting).json()) == [len(text) for text in first]


@KEYS
@pytest.mark.parametrize(("first", "second"), [(SMALL, ("two",)), (SMALL, MANY), (MANY, SMALL)])
async def test_another_request_is_refused_when_the_first_was_just_answered(
    desk: Desk, first: tuple[str, ...], second: tuple[str, ...], a_key: Callable[[], str]
) -> None:
    key = a_key()
    async with desk.worker():
        await desk.encode(*first, Idempotency_Key=key)
        assert mismatches(await desk.encode(*second, Idempotency_Key=key))


@KEYS
@pytest.mark.parametrize(("first", "second"), [(SMALL, ("two",)), (SMALL, MANY)])
async def test_another_request_is_refused_when_the_first_is_a_job_that_is_done(
    desk: Desk, first: tuple[str, ...], second: tuple[str, ...], a_key: Callable[[], str]
) -> None:
    key = a_key()
    async with desk.worker():
        job = await desk.encode(*first, Idempotency_Key=key, Prefer="wait=0")
        assert await job_of(desk, job) == [len(text) for text in first]
        for prefer in ("wait=10", "wait=0"):
            assert mismatches(await desk.encode(*second, Idempotency_Key=key, Prefer=prefer))
        assert await job_of(desk, job) == [len(text) for text in first]


@KEYS
async def test_a_small_request_does_not_take_the_job_of_one_in_parts(desk: Desk, a_key: Callable[[], str]) -> None:
    key = a_key()
    async with desk.worker():
        job = await desk.encode(*MANY, Idempotency_Key=key, Prefer="wait=0")
        assert job.status_code == 202
        assert mismatches(await desk.encode(*SMALL, Idempotency_Key=key, Prefer="wait=0"))
        assert await job_of(desk, job) == [3] * len(MANY)


async def test_a_request_in_parts_is_the_same_job_when_it_is_repeated_and_another_is_refused(desk: Desk) -> None:
    job = await desk.encode(*MANY, Idempotency_Key="k")
    again = await desk.encode(*MANY, Idempotency_Key="k")
    assert job.headers["location"] == again.headers["location"]
    assert mismatches(await desk.encode(*MANY[1:], "other", Idempotency_Key="k"))
    assert mismatches(await desk.encode(*MANY, "and one more", Idempotency_Key="k"))
    async with desk.worker():
        assert await job_of(desk, job) == [3] * len(MANY)
        assert lengths((await desk.encode(*MANY, Idempotency_Key="k")).json()) == [3] * len(MANY)


async def test_of_two_that_come_together_while_cold_one_is_refused(desk: Desk) -> None:
    answers = await asyncio.gather(*(desk.encode(text, Idempotency_Key="k") for text in ("a", "bb")))
    (job,) = [answer for answer in answers if answer.status_code == 202]
    assert sum(map(mismatches, answers)) == 1
    async with desk.worker():
        assert await job_of(desk, job) == [1 if job is answers[0] else 2]


@pytest.fixture
async def desks(nats_url: str) -> AsyncIterator[list[Desk]]:
    """Two ingresses of one deployment."""
    async with AsyncExitStack() as stack:
        made = []
        for name in ("ingress-a", "ingress-b"):
            broker = NatsBroker(nats_url, name=name)
            await broker.connect()
            stack.push_async_callback(broker.close)
            made.append(await stack.enter_async_context(opened(broker, max_body_bytes=1 << 20)))
        yield made


@KEYS
@pytest.mark.parametrize("text", ["small", "too large for a message" * 10_000], ids=["small", "large"])
async def test_another_request_is_refused_at_another_ingress(
    desks: list[Desk], text: str, a_key: Callable[[], str]
) -> None:
    here, there = desks
    key = a_key()
    async with here.worker():
        await eventually(lambda: there.lanes.live(next(iter(here.lanes.workers())).lane))
        here.hold.clear()
        first = asyncio.create_task(here.encode(text, Idempotency_Key=key))
        await eventually(lambda: bool(here.computed))
        assert mismatches(await there.encode("other", Idempotency_Key=key))
        same = asyncio.create_task(there.encode(text, Idempotency_Key=key))
        here.hold.set()
        assert lengths((await first).json()) == lengths((await same).json()) == [len(text)]
