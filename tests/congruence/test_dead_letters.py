"""Work that nobody finishes becomes a dead letter with all it came with, and comes back whole, on both brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from sie_broker import claim, jobs
from sie_broker.contract import Broker
from sie_broker.records import MAX_DELIVERIES, MAX_REQUEUES, DeadLetter, Reply, Work
from sie_sdk.errors import NotFoundError
from tests.conftest import eventually
from tests.congruence.test_broker import LANE, MODEL, eventually_not_queued, pulling, take, work
from tests.congruence.test_payloads import eventually_empty


@pytest.fixture
async def ready(broker: Broker) -> AsyncIterator[Broker]:
    await broker.provision([(LANE, MODEL)])
    burying = asyncio.create_task(broker.bury())
    yield broker
    burying.cancel()
    with suppress(asyncio.CancelledError):
        await burying


async def letters(broker: Broker, count: int = 1) -> list[DeadLetter]:
    """The dead letters, once there are ``count``."""
    end = time.monotonic() + 10
    while len(found := await broker.dead.entries()) != count:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.01)
    return found


async def exhaust(broker: Broker, sent: Work) -> None:
    """Submit it and give it back each time."""
    await broker.submit(sent)
    await give_back(broker, sent)


async def give_back(broker: Broker, sent: Work) -> None:
    async with pulling(broker, priority=sent.priority) as taken:
        for attempt in range(1, MAX_DELIVERIES + 1):
            delivery = await take(taken)
            assert (delivery.work.id, delivery.attempt) == (sent.id, attempt)
            await delivery.nak()
        await letters(broker)
        assert taken.empty()


def error_of(reply: Reply | None) -> dict[str, Any]:
    assert reply is not None
    error: dict[str, Any] = msgspec.json.decode(reply.data)["error"]
    return error


async def test_work_given_back_five_times_is_a_dead_letter_with_all_it_came_with(ready: Broker) -> None:
    sent = work(
        "a/b", data=b"\x00body", priority="bulk", tenant="acme", cause="e 1", reply_to="sie.reply.x.y", deadline=1.0
    )
    await exhaust(ready, sent)
    (listed,) = await letters(ready)
    assert (listed.id, listed.reason, listed.deliveries, listed.size) == ("a/b", "exhausted", MAX_DELIVERIES, 5)
    assert listed.data == b""
    assert abs(listed.at - time.time()) < 60 and abs(listed.accepted - sent.time) < 60
    whole = await ready.dead.get("a/b")
    assert whole.data == sent.data
    assert msgspec.structs.replace(whole, data=b"") == listed
    expected = {"ce-id": "a/b", "ce-tenant": "acme", "ce-replyto": "sie.reply.x.y", "ce-priority": "bulk"}
    assert expected.items() <= whole.headers.items()

    async def nothing_waits() -> bool:
        return sum((await ready.backlog()).values()) == 0

    await eventually(nothing_waits)  # it leaves its queue once its caller is told


async def test_who_waits_for_exhausted_work_is_told_and_so_is_who_asks_later(ready: Broker) -> None:
    with ready.expect("w") as (inbox, reply):
        await exhaust(ready, work("w", reply_to=inbox, cause="event"))
        async with asyncio.timeout(10):
            told = await reply
    assert (told.status, told.cause) == (500, "event")
    assert error_of(told)["code"] == "WORK_EXHAUSTED"
    assert error_of(await jobs.wait_result(ready.jobs, "w", 5))["code"] == "WORK_EXHAUSTED"


async def test_exhausted_work_that_was_answered_before_is_no_dead_letter(ready: Broker) -> None:
    await ready.submit(work("answered"))
    async with pulling(ready) as taken:
        for attempt in range(MAX_DELIVERIES):
            delivery = await take(taken)
            if attempt == 0:
                await delivery.reply(Reply(id="answered", data=b"answer"))
            await delivery.nak()
        end = time.monotonic() + 10
        while sum((await ready.backlog()).values()):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
    assert await ready.dead.entries() == []
    kept = await jobs.result(ready.jobs, "answered")
    assert kept is not None and kept.data == b"answer"


async def test_a_replay_is_the_same_work_again_and_its_result_takes_the_error_s_place(ready: Broker) -> None:
    sent = work("again", reply_to="sie.reply.gone.again", deadline=time.time() + 1, tenant="acme")
    await exhaust(ready, sent)
    assert (await jobs.wait_result(ready.jobs, "again", 5)) is not None
    await ready.dead.replay("again")
    assert await jobs.result(ready.jobs, "again") is None
    assert await jobs.find(ready.jobs, "again") == jobs.job_of(sent)
    assert await ready.dead.entries() == []
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert delivery.work == msgspec.structs.replace(sent, deadline=None)
        assert delivery.attempt == 1
        await delivery.reply(Reply(id="again", data=b"result"))
        await delivery.ack()
    kept = await jobs.wait_result(ready.jobs, "again", 5)
    assert kept is not None and kept.data == b"result"


async def test_work_that_dies_again_after_a_replay_is_a_dead_letter_again(ready: Broker) -> None:
    sent = work("cat")
    await exhaust(ready, sent)
    await ready.dead.replay("cat")
    await give_back(ready, sent)
    assert [letter.id for letter in await letters(ready)] == ["cat"]
    assert error_of(await jobs.wait_result(ready.jobs, "cat", 5))["code"] == "WORK_EXHAUSTED"


async def test_a_dropped_letter_is_gone_and_an_unknown_one_is_refused_by_name(ready: Broker) -> None:
    await exhaust(ready, work("bad"))
    await ready.dead.drop("bad")
    assert await ready.dead.entries() == []
    for verb in (ready.dead.get, ready.dead.replay, ready.dead.drop):
        with pytest.raises(NotFoundError, match="'bad'"):
            await verb("bad")


async def test_data_too_large_for_a_message_is_kept_with_its_letter_and_comes_back_with_a_replay(ready: Broker) -> None:
    sent = work("large", data=bytes(range(256)) * 4096)
    await exhaust(ready, sent)
    (listed,) = await letters(ready)
    assert listed.size == len(sent.data)
    assert (await ready.dead.get("large")).data == sent.data
    await eventually_empty(ready, "work")
    await ready.dead.replay("large")
    await give_back(ready, sent)
    assert (await ready.dead.get("large")).data == sent.data
    await ready.dead.replay("large")
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert (await claim.redeem(ready.payloads, delivery.work)).data == sent.data
        await delivery.ack()
    await eventually_empty(ready, "dead")


async def test_large_data_goes_with_a_letter_that_is_dropped(ready: Broker) -> None:
    await exhaust(ready, work("large", data=b"x" * 500_000))
    await letters(ready)
    await ready.dead.drop("large")
    await eventually_empty(ready, "work")
    await eventually_empty(ready, "dead")


async def test_work_queued_anew_is_known_by_its_receipt_until_it_is_done(ready: Broker) -> None:
    sent = work("spared")
    receipt = await ready.submit(sent)
    async with pulling(ready) as taken:
        for _ in range(2):
            assert await (await take(taken)).requeue()
        last = await take(taken)
        end = time.monotonic() + 10
        while await ready.backlog() != {LANE: 1}:  # what it was queued as before
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        assert await ready.work(LANE, receipt.sequence) == sent
        again = await ready.submit(sent)
        assert again.duplicate and await ready.queued(LANE, again.sequence)
        await last.ack()
        await eventually_not_queued(ready, receipt.sequence)


async def test_work_queued_anew_has_all_its_deliveries_before_it_a_few_times(ready: Broker) -> None:
    sent = work("spared", data=b"x" * 500_000, tenant="acme")
    await ready.submit(sent)
    async with pulling(ready) as taken:
        await (await take(taken)).nak()
        for times in range(MAX_REQUEUES):
            delivery = await take(taken)
            assert (delivery.attempt, delivery.requeues) == (2 if times == 0 else 1, times)
            assert (delivery.work.id, delivery.work.tenant) == ("spared", "acme")
            assert await delivery.requeue()
        last = await take(taken)
        assert (last.attempt, last.requeues) == (1, MAX_REQUEUES)
        assert not await last.requeue()
        assert (await claim.redeem(ready.payloads, last.work)).data == sent.data
        assert await ready.backlog() == {LANE: 1}
        await last.ack()
    await eventually_empty(ready, "work")
    assert sum((await ready.backlog()).values()) == 0
