"""Data too large for a message, on both brokers: it arrives whole, has one owner, goes with it, and fails by name."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
import pytest

from sie_broker import claim, jobs, subjects
from sie_broker.claim import CHUNK_BYTES, REPLY_INLINE_BYTES, WORK_INLINE_BYTES
from sie_broker.contract import Broker, Store
from sie_broker.jetstream import nats_broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.records import Reply
from sie_sdk.errors import (
    InvalidInputError,
    PayloadLostError,
    PayloadTooLargeError,
    QueueFullError,
    QueueUnavailableError,
)
from tests.congruence.test_broker import LANE, MODEL, pulling, take, work

MIB = 1024 * 1024


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(LANE, MODEL)])
    return broker


async def held(broker: Broker, store: Store) -> int:
    """Bytes in one store."""
    if isinstance(broker, MemoryBroker):
        return sum(
            len(data) for dataref, (_, data) in broker.payloads.held.items() if claim.parse(dataref).store == store
        )
    assert isinstance(broker, NatsBroker)
    info = await broker.nc.jetstream().stream_info(claim.STREAMS[store])
    return info.state.bytes


async def eventually_empty(broker: Broker, store: Store) -> None:
    end = time.monotonic() + 10
    while left := await held(broker, store):
        assert time.monotonic() < end, f"{left} bytes left"
        await asyncio.sleep(0.005)


async def reshape(broker: NatsBroker, stream: str, **limits: int) -> None:
    """Change some limits of a stream."""
    info = await broker.nc.request(f"$JS.API.STREAM.INFO.{stream}", timeout=5)
    config = msgspec.json.decode(info.data)["config"] | limits
    changed = await broker.nc.request(f"$JS.API.STREAM.UPDATE.{stream}", msgspec.json.encode(config), timeout=5)
    assert "error" not in msgspec.json.decode(changed.data), changed.data


async def tamper(broker: Broker, dataref: str, piece: bytes) -> None:
    """Put ``piece`` where the payload's second piece was."""
    reference = claim.parse(dataref)
    if isinstance(broker, MemoryBroker):
        until, data = broker.payloads.held[dataref]
        damaged = data[:CHUNK_BYTES] + piece + data[CHUNK_BYTES + len(piece) :]
        broker.payloads.held[dataref] = until, damaged[: -1 if len(piece) < CHUNK_BYTES else None]
    else:
        assert isinstance(broker, NatsBroker)
        stream = claim.STREAMS[reference.store]
        await broker.nc.jetstream().publish(f"sie.payload.{stream}.{reference.owner}.{reference.id}.1", piece)


def around(inline_bytes: int) -> list[int]:
    return [0, 1, inline_bytes - 1, inline_bytes, inline_bytes + 1, 20 * MIB]


@pytest.mark.parametrize("size", around(WORK_INLINE_BYTES))
async def test_work_of_any_size_arrives_whole_and_leaves_nothing_behind(ready: Broker, size: int) -> None:
    sent = work("w/1", data=os.urandom(size))
    await ready.submit(sent)
    assert (await held(ready, "work") > 0) == (size > WORK_INLINE_BYTES)
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert await claim.redeem(ready.payloads, delivery.work) == sent
        await delivery.ack()
    await eventually_empty(ready, "work")


@pytest.mark.parametrize("size", around(REPLY_INLINE_BYTES))
async def test_a_reply_of_any_size_arrives_whole_in_an_inbox(ready: Broker, size: int) -> None:
    sent = Reply(id="w", data=os.urandom(size), worker="w1")
    with ready.expect("w") as (inbox, coming):
        await ready.submit(work("w", reply_to=inbox))
        async with pulling(ready) as taken:
            delivery = await take(taken)
            await delivery.reply(sent)
            await delivery.ack()
        async with asyncio.timeout(10):
            reply = await coming
    assert claim.size(reply) == size
    assert (reply.dataref is not None) == (size > REPLY_INLINE_BYTES)
    assert await claim.redeem(ready.payloads, reply) == sent
    if reply.dataref is not None:
        await ready.payloads.drop(reply.dataref)
    await eventually_empty(ready, "result")


@pytest.mark.parametrize("size", around(REPLY_INLINE_BYTES))
async def test_a_reply_of_any_size_is_kept_whole_as_the_job_s_result(ready: Broker, size: int) -> None:
    sent = Reply(id="w", data=os.urandom(size), worker="w1")
    await ready.submit(work("w"))
    async with pulling(ready) as taken:
        delivery = await take(taken)
        await delivery.reply(sent)
        await delivery.ack()
    kept = await jobs.wait_result(ready.jobs, "w", 10)
    assert kept is not None
    assert await claim.redeem(ready.payloads, kept) == sent


async def test_a_reply_that_is_sent_again_is_stored_once(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    sent = Reply(id="w", data=os.urandom(2 * MIB))
    await broker.submit(work("w"))
    async with pulling(broker) as taken:
        delivery = await take(taken)
        await delivery.reply(sent)
        first = await jobs.result(broker.jobs, "w")
        await delivery.reply(sent)
        assert await jobs.result(broker.jobs, "w") == first
        assert first is not None and await claim.redeem(broker.payloads, first) == sent
    await broker.close()


async def test_terminated_work_takes_its_payload_along_and_work_given_back_keeps_it(ready: Broker) -> None:
    sent = work("w", data=os.urandom(MIB))
    await ready.submit(sent)
    async with pulling(ready) as taken:
        await (await take(taken)).nak()
        again = await take(taken)
        assert again.attempt == 2
        assert await claim.redeem(ready.payloads, again.work) == sent
        await again.term("bad input")
        await eventually_empty(ready, "work")


async def test_a_duplicate_leaves_nothing_behind_and_takes_nothing_away(ready: Broker) -> None:
    sent = work("same", data=os.urandom(MIB))
    receipts = await asyncio.gather(*(ready.submit(sent) for _ in range(4)))
    assert sorted(receipt.duplicate for receipt in receipts) == [False, True, True, True]
    one = await held(ready, "work")
    assert one < 1.1 * MIB
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert await claim.redeem(ready.payloads, delivery.work) == sent
        await delivery.ack()
        await eventually_empty(ready, "work")
        assert (await ready.submit(sent)).duplicate
    await eventually_empty(ready, "work")


async def test_two_payloads_of_one_owner_are_two(ready: Broker) -> None:
    first = await ready.payloads.store("work", "w", b"same")
    second = await ready.payloads.store("work", "w", b"same")
    await ready.payloads.drop(first)
    assert await ready.payloads.load(second) == b"same"


async def test_a_payload_that_is_gone_is_lost_by_name(ready: Broker) -> None:
    dataref = await ready.payloads.store("result", "w", bytes(MIB))
    await ready.payloads.drop(dataref)
    await ready.payloads.drop(dataref)
    with pytest.raises(PayloadLostError, match="no longer stored"):
        await ready.payloads.load(dataref)


@pytest.mark.parametrize("piece", [b"x" * CHUNK_BYTES, b"short"])
async def test_a_damaged_payload_is_lost_by_name(ready: Broker, piece: bytes) -> None:
    dataref = await ready.payloads.store("work", "w", bytes(2 * MIB))
    await tamper(ready, dataref, piece)
    with pytest.raises(PayloadLostError, match="came back damaged"):
        await ready.payloads.load(dataref)


async def test_an_unreadable_reference_is_refused_and_drops_nothing(ready: Broker) -> None:
    with pytest.raises(InvalidInputError):
        await ready.payloads.load("https://example.org/data")
    await ready.payloads.drop("https://example.org/data")


async def test_a_dead_letter_keeps_a_copy_of_its_own(ready: Broker) -> None:
    sent = work("w", data=os.urandom(MIB))
    await ready.submit(sent)
    async with pulling(ready) as taken:
        delivery = await take(taken)
        assert delivery.work.dataref is not None
        copy = await claim.to_dead_letter(ready.payloads, delivery.work.dataref)
        await delivery.ack()
    await eventually_empty(ready, "work")
    assert await ready.payloads.load(copy) == sent.data
    await ready.payloads.drop(copy)
    await eventually_empty(ready, "dead")


async def test_a_full_store_refuses_by_name_and_keeps_no_pieces(ready: Broker) -> None:
    if isinstance(ready, MemoryBroker):
        ready.payloads._max_bytes = MIB
    else:
        assert isinstance(ready, NatsBroker)
        await reshape(ready, claim.STREAMS["work"], max_bytes=MIB)
    with pytest.raises(QueueFullError) as refused:
        await ready.submit(work("w", data=bytes(4 * MIB)))
    assert str(4 * MIB) in refused.value.message and refused.value.retry_after
    await eventually_empty(ready, "work")
    await ready.submit(work("w", data=bytes(WORK_INLINE_BYTES + 1)))


async def test_a_full_queue_keeps_no_payload(ready: Broker) -> None:
    await ready.submit(work("first"))
    if isinstance(ready, MemoryBroker):
        ready._max_queued = 1
    else:
        assert isinstance(ready, NatsBroker)
        await reshape(ready, subjects.stream(LANE.pool), max_msgs=1)
    with pytest.raises(QueueFullError):
        await ready.submit(work("w", data=bytes(MIB)))
    await eventually_empty(ready, "work")


async def test_work_that_is_surely_not_queued_keeps_no_payload(ready: Broker) -> None:
    assert await ready.retire(LANE.pool)
    with pytest.raises(QueueUnavailableError):
        await ready.submit(work("w", data=bytes(MIB)))
    await eventually_empty(ready, "work")


async def test_work_that_the_server_refuses_keeps_no_payload(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    await reshape(broker, subjects.stream(LANE.pool), max_msg_size=16)
    with pytest.raises(PayloadTooLargeError):
        await broker.submit(work("w", data=bytes(MIB)))
    await eventually_empty(broker, "work")
    await broker.close()


async def test_work_of_which_nobody_knows_whether_it_is_queued_keeps_its_payload(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    monkeypatch.setattr(nats_broker, "PUBLISHED_S", 0.0)
    with pytest.raises(QueueUnavailableError):
        await broker.submit(work("w", data=bytes(MIB)))
    async with pulling(broker) as delivered:
        delivery = await take(delivered)
        assert (await claim.redeem(broker.payloads, delivery.work)).data == bytes(MIB)
    await broker.close()


async def test_a_payload_expires(ready: Broker) -> None:
    if isinstance(ready, MemoryBroker):
        ready.payloads._lifetime_s = 0.1
    else:
        assert isinstance(ready, NatsBroker)
        await reshape(ready, claim.STREAMS["work"], max_age=100_000_000, duplicate_window=100_000_000)
    await ready.submit(work("w", data=bytes(MIB)))
    async with pulling(ready) as taken:
        delivery = await take(taken)
        with pytest.raises(PayloadLostError):
            async with asyncio.timeout(10):
                while True:
                    await claim.redeem(ready.payloads, delivery.work)
        await delivery.term("lost")
