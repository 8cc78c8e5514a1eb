"""Work that nobody wants any more leaves its queue with its data, and who pulls there is told: on both brokers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sie_broker.claim import WORK_INLINE_BYTES
from sie_broker.contract import Broker
from sie_broker.records import Queue
from sie_sdk.errors import PayloadLostError
from tests.conftest import eventually
from tests.congruence.test_broker import LANE, MODEL, pulling, take, work

QUEUE = Queue(LANE, MODEL)


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL), (LANE, "other")])
    return broker


async def test_what_is_withdrawn_is_queued_no_more_and_given_to_nobody(ready: Broker) -> None:
    first, second = work("first"), work("second")
    receipt = await ready.submit(first)
    kept = await ready.submit(second)
    await ready.withdraw(first, receipt.sequence)
    assert not await ready.queued(LANE, receipt.sequence)
    assert await ready.queued(LANE, kept.sequence)
    assert await ready.backlog() == {LANE: 1}
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert delivery.work == second
        await delivery.ack()
        assert taken.empty()


async def test_work_that_was_given_back_or_queued_anew_can_be_withdrawn_too(ready: Broker) -> None:
    works = [work("given-back"), work("anew", data=b"x" * (WORK_INLINE_BYTES + 1))]
    receipts = [await ready.submit(each) for each in works]
    async with pulling(ready) as taken:
        for back in [await take(taken) for _ in works]:
            if back.work.id == "anew":
                assert await back.requeue()
            else:
                await back.nak(0.2)
    for each, receipt in zip(works, receipts, strict=True):
        await ready.withdraw(each, receipt.sequence)
        assert not await ready.queued(LANE, receipt.sequence)
    last = work("last")
    await ready.submit(last)
    async with pulling(ready) as taken:
        await asyncio.sleep(0.3)  # until the one that was given back would come again
        assert (await take(taken)).work == last and taken.empty()


async def test_those_who_pull_its_queue_are_told_and_no_others(ready: Broker) -> None:
    told: list[str] = []
    others: list[str] = []
    mine, other = work("a b"), work("c", model="other")
    receipts = [await ready.submit(mine), await ready.submit(other)]
    async with ready.on_withdrawn(QUEUE, told.append), ready.on_withdrawn(Queue(LANE, "other"), others.append):
        await ready.withdraw(mine, receipts[0].sequence)
        await ready.withdraw(other, receipts[1].sequence)
        await eventually(lambda: bool(told and others))
    assert (told, others) == (["a b"], ["c"])


async def test_work_in_hand_can_be_withdrawn_and_what_its_worker_does_then_hurts_nobody(ready: Broker) -> None:
    mine = work("a")
    receipt = await ready.submit(mine)
    async with pulling(ready) as taken:
        delivery = await take(taken)
        await ready.withdraw(mine, receipt.sequence)
        assert not await ready.queued(LANE, receipt.sequence)
        await delivery.ack()
        await ready.submit(work("b"))
        assert (await take(taken)).work.id == "b"


async def test_its_data_goes_along(ready: Broker) -> None:
    large = work("a", data=b"x" * (WORK_INLINE_BYTES + 1))
    receipt = await ready.submit(large)
    queued = await ready.work(LANE, receipt.sequence)
    assert queued is not None and queued.dataref is not None
    await ready.withdraw(large, receipt.sequence)
    with pytest.raises(PayloadLostError):
        await ready.payloads.load(queued.dataref)


async def test_what_is_answered_already_is_past_that_and_another_s_work_is_not_touched(ready: Broker) -> None:
    mine, other = work("a"), work("b")
    receipt, others = await ready.submit(mine), await ready.submit(other)
    async with pulling(ready) as taken:
        await (await take(taken)).ack()
        await take(taken)
    await ready.withdraw(mine, receipt.sequence)
    await ready.withdraw(mine, receipt.sequence)
    await ready.withdraw(msgspec.structs.replace(mine, id="c"), others.sequence)
    assert await ready.queued(LANE, others.sequence)
