"""What is subscribed to: by whom, and until when, also while NATS is away."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path

from sie_broker import jobs
from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Reply
from sie_broker.room import Room
from tests.conftest import eventually, running_nats
from tests.congruence.test_broker import LANE, MODEL


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
