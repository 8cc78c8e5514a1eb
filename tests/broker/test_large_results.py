"""Many who read large results at once, over one connection to a real nats-server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sie_broker import jobs
from sie_broker.jetstream.bucket import LARGE_AT_ONCE
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Reply

READERS = 100
MIB = 1024 * 1024


async def test_many_readers_of_large_results_keep_their_connection(nats_url: str, tmp_path: Path) -> None:
    lost: list[Exception] = []
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([])
    broker.nc._error_cb = lambda error: _noted(lost, error)
    try:
        await jobs.keep(broker.jobs, Reply(id="large", data=bytes(MIB)))
        found = await asyncio.gather(*(jobs.wait_result(broker.jobs, "large", 30.0) for _ in range(READERS)))
        assert all(reply is not None and len(reply.data) == MIB for reply in found)
        assert not lost
    finally:
        await broker.close()
    assert "Slow Consumer" not in (tmp_path / "nats" / "log").read_text()


async def test_who_waits_for_a_result_holds_no_place_of_those_who_read_one(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([])
    waiting = [
        asyncio.create_task(jobs.wait_result(broker.jobs, f"job-{place}", 30.0)) for place in range(4 * LARGE_AT_ONCE)
    ]
    try:
        await jobs.keep(broker.jobs, Reply(id="there", data=b"1"))
        assert await jobs.result(broker.jobs, "there") is not None
        for place in range(len(waiting)):
            await jobs.keep(broker.jobs, Reply(id=f"job-{place}", data=b"1"))
        assert all(await asyncio.gather(*waiting))
    finally:
        await broker.close()


async def _noted(lost: list[Exception], error: Exception) -> None:
    lost.append(error)
