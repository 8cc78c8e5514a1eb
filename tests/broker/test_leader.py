"""Several demand holders on one real nats-server: one leads, and none of its ends shrinks a fleet that works."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sie_broker.__main__ import lead
from sie_broker.contract import Broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.lease import TTL_S, Lease
from sie_broker.records import Lane, WorkerState
from sie_broker.settings import Settings
from sie_sdk.errors import QueueUnavailableError
from tests.broker.http_double import SessionServer
from tests.conftest import eventually, running_nats

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
PODS = 2
SESSIONS = 2 * PODS - 1
SLOW_S = 5.0
"""What a busy machine may add; well below the lease."""


@pytest.fixture
async def server() -> AsyncIterator[SessionServer]:
    made = SessionServer()
    async with made.running():
        yield made


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "m")])
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def fleet(broker: Broker) -> AsyncIterator[None]:
    """Pods that work: they beat, and nothing waits."""

    async def beat() -> None:
        while True:
            for number in range(PODS):
                state = WorkerState(f"w{number}", LANE, "ready", time.time())
                try:
                    await broker.presence.put(state.worker, msgspec.msgpack.encode(state))
                except QueueUnavailableError:
                    break
            await asyncio.sleep(0.3)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


class Copy:
    """One ``python -m sie_broker``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


@asynccontextmanager
async def copy_of_the_holder(nats_url: str, url: str, **more: str) -> AsyncIterator[Copy]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sie_broker",
        env=os.environ | {"SIE_NATS_URL": nats_url, "SIE_DEMAND_URL": url, "SIE_POD_RATE": "1", **more},
        stderr=asyncio.subprocess.PIPE,
    )
    copy = Copy(process)
    try:
        yield copy
    finally:
        await copy.end()


@pytest.mark.e2e
async def test_a_killed_leader_is_followed_by_another_within_the_lease_and_nothing_shrinks(
    nats_url: str, server: SessionServer
) -> None:
    async with connected(nats_url) as broker, fleet(broker), copy_of_the_holder(nats_url, server.url) as first:
        await eventually(lambda: first.says("holding demand") and server.open == SESSIONS, deadline_s=20)
        async with copy_of_the_holder(nats_url, server.url) as second:
            await eventually(lambda: second.says("standing by"), deadline_s=20)
            first.process.kill()
            await eventually(lambda: server.open == 0)
            await eventually(lambda: second.says("holding demand"), deadline_s=TTL_S + SLOW_S)
            await eventually(lambda: server.open == SESSIONS)
            assert server.most_open == SESSIONS
            second.process.terminate()
            assert await second.process.wait() == 0
            await eventually(lambda: server.open == 0)


@pytest.mark.e2e
async def test_a_leader_that_was_stopped_and_wakes_up_closes_its_sessions(nats_url: str, server: SessionServer) -> None:
    async with connected(nats_url) as broker, fleet(broker), copy_of_the_holder(nats_url, server.url) as first:
        await eventually(lambda: first.says("holding demand") and server.open == SESSIONS, deadline_s=20)
        async with copy_of_the_holder(nats_url, server.url) as second:
            await eventually(lambda: second.says("standing by"), deadline_s=20)
            first.process.send_signal(signal.SIGSTOP)
            await eventually(lambda: second.says("holding demand"), deadline_s=TTL_S + SLOW_S)
            await eventually(lambda: server.open == 2 * SESSIONS)
            first.process.send_signal(signal.SIGCONT)
            await eventually(lambda: first.says("another took it"), deadline_s=SLOW_S)
            await eventually(lambda: server.open == SESSIONS)
            assert not second.says("another took it")


@pytest.mark.e2e
async def test_a_leader_that_leaves_hands_over_at_once(nats_url: str, server: SessionServer) -> None:
    async with connected(nats_url) as broker, fleet(broker), copy_of_the_holder(nats_url, server.url) as first:
        await eventually(lambda: first.says("holding demand") and server.open == SESSIONS, deadline_s=20)
        async with copy_of_the_holder(nats_url, server.url) as second:
            await eventually(lambda: second.says("standing by"), deadline_s=20)
            first.process.terminate()
            await eventually(lambda: second.says("holding demand"), deadline_s=SLOW_S)
            await eventually(lambda: server.open == SESSIONS)
            assert server.most_open == SESSIONS


@pytest.mark.e2e
async def test_a_leader_that_starts_again_under_its_name_leads_at_once(nats_url: str, server: SessionServer) -> None:
    async with connected(nats_url) as broker, fleet(broker):
        async with copy_of_the_holder(nats_url, server.url, SIE_REPLICA="pod-1") as first:
            await eventually(lambda: server.open == SESSIONS, deadline_s=20)
            first.process.kill()
            await eventually(lambda: server.open == 0)
        async with copy_of_the_holder(nats_url, server.url, SIE_REPLICA="pod-1") as again:
            await eventually(lambda: server.open == SESSIONS)
            assert not again.says("standing by")
            assert server.most_open == SESSIONS


async def test_an_outage_longer_than_the_lease_closes_no_session_and_changes_no_leader(
    tmp_path: Path, server: SessionServer
) -> None:
    setting = Settings(demand_url=server.url)
    leads: list[int] = []

    async def leading(number: int, broker: Broker) -> None:
        leads.append(number)
        await lead(broker, setting)

    def lease(broker: Broker, renew_s: float) -> Lease:
        return Lease(broker.leases, "demand", ttl_s=2, renew_s=renew_s, margin_s=0.5, patience_s=setting.frozen_s)

    async with AsyncExitStack() as stack:
        with running_nats(tmp_path) as url:
            first, second, pods = [await stack.enter_async_context(connected(url)) for _ in range(3)]
            await stack.enter_async_context(fleet(pods))
            # Who stands by gives the other so long to come back first: each has a connection of its own.
            leases = [lease(first, renew_s=0.3), lease(second, renew_s=3.0)]
            tasks = [asyncio.create_task(leases[0].lead(lambda: leading(0, first)))]
            await eventually(lambda: server.open == SESSIONS)
            tasks.append(asyncio.create_task(leases[1].lead(lambda: leading(1, second))))
            await eventually(lambda: leases[1]._other is not None)
            token = leases[0].token
        await eventually(lambda: leases[0].token == 0)
        since = time.monotonic()
        await eventually(lambda: time.monotonic() - since > 2)
        assert server.open == SESSIONS
        with running_nats(tmp_path, port=int(url.rpartition(":")[2])):
            await eventually(lambda: leases[0].token > token)
            since = time.monotonic()
            await eventually(lambda: time.monotonic() - since > 4)
            assert leads == [0]
            assert (server.open, server.most_open, len(server.headers)) == (SESSIONS, SESSIONS, SESSIONS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stack.aclose()
