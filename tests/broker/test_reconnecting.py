"""What is subscribed to: by whom, and until when, also while NATS is away."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import ConnectionClosedError

from sie_broker import jobs
from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.mailbox import Mailbox
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Reply
from sie_broker.room import Room
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import eventually, running_nats
from tests.congruence.test_broker import LANE, MODEL, pulling, take, work


async def test_what_ends_while_nats_is_away_is_not_subscribed_again(tmp_path: Path) -> None:
    with ExitStack() as server:
        broker = NatsBroker(server.enter_context(running_nats(tmp_path)), name="test")
        await broker.connect()
        await broker.provision([(LANE, MODEL)])
        before = set(broker.nc._subs)
        parcels = broker.due(Room(1))
        burial = Burial(broker.nc, broker.dead, broker.jobs, broker.payloads)
        tasks = [asyncio.ensure_future(anext(parcels)), asyncio.create_task(burial.run())]
        async with broker.leases.watch(lambda key, value: None), broker.on_wake(lambda lane: None):
            await eventually(lambda: len(broker.nc._subs) == len(before) + len(tasks) + 2)
            server.close()
            await eventually(lambda: broker.nc.is_reconnecting)
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await eventually(lambda: set(broker.nc._subs) == before, 5)
        await broker.close()


async def test_a_broker_whose_server_has_just_gone_away_is_closed_without_an_error(tmp_path: Path) -> None:
    with ExitStack() as server:
        broker = NatsBroker(server.enter_context(running_nats(tmp_path)), name="test")
        await broker.connect()
        server.close()
        await eventually(lambda: broker.nc.is_reconnecting)
        await broker.nc.publish("sie.test", b"what nobody hears" * 100_000)
        await broker.close()
        assert broker.nc.is_closed


async def test_a_broker_that_found_no_server_is_closed_as_one_that_did() -> None:
    broker = NatsBroker("nats://127.0.0.1:1", name="test")
    await broker.close()
    with pytest.raises(QueueUnavailableError):
        await broker.connect()
    await broker.close()


async def test_a_broker_whose_connection_fails_before_it_listens_leaves_none_behind_and_connects_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    broker = NatsBroker(nats_url, name="test")
    opened: list[Client] = []

    async def fail(mailbox: Mailbox) -> None:
        opened.append(broker.nc)
        broker._link.lost()  # and is not back
        raise ConnectionClosedError

    with monkeypatch.context() as patch:
        patch.setattr(Mailbox, "open", fail)
        for _ in range(2):
            with pytest.raises(QueueUnavailableError):
                await broker.connect()
    assert [each.is_closed for each in opened] == [True, True]
    await eventually(lambda: asyncio.all_tasks() == before)
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    async with pulling(broker) as taken:
        await broker.submit(work("w"))
        await (await take(taken)).ack()
    await broker.close()
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_all_who_wait_for_one_result_hear_it_by_one_subscription(tmp_path: Path) -> None:
    with running_nats(tmp_path) as url:
        broker = NatsBroker(url, name="test")
        await broker.connect()
        await broker.provision([])
        before = set(broker.nc._subs)
        waiting = [asyncio.create_task(jobs.wait_result(broker.jobs, "job", 10)) for _ in range(100)]
        await eventually(lambda: len(broker.nc._subs) > len(before))
        left = [asyncio.create_task(jobs.wait_result(broker.jobs, "job", 10)) for _ in range(2)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        assert len(broker.nc._subs) == len(before) + 1
        await jobs.keep(broker.jobs, Reply("job", b"answer"))
        assert [reply and reply.data for reply in await asyncio.gather(*waiting)] == [b"answer"] * 100
        await eventually(lambda: set(broker.nc._subs) == before, 5)
        await broker.close()
