"""What ends while NATS is away."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path

from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.nats_broker import NatsBroker
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
