"""The local scaler with real processes: 0 -> 1 -> N -> 0 by held sessions, timeouts, clients that leave, crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from sie_broker import process
from sie_broker.demand.pods import open_sessions
from sie_broker.demand.sessions import Sessions
from sie_broker.records import Lane
from sie_local.autoscaling import Policy
from sie_local.child import Child, Program, serves
from sie_local.ports import free_port
from sie_local.scaler import Process, Scaler
from tests.conftest import eventually

STAND_IN = Path(__file__).with_name("stand_in_bundle.py")
LANE = Lane(pool="default", bundle="minilm", profile="cpu")
NAME = "minilm/cpu/default"


class Local:
    """A scaler that serves, and what it started."""

    def __init__(self, logs: Path, policy: Policy, env: dict[str, str]) -> None:
        self.logs = logs
        self.env = env
        self.unheld = False
        self.scaler = Scaler(self.spawn, lambda name: name == NAME, policy, lambda: self.unheld)
        self.started: list[Child] = []
        self.port = 0

    def spawn(self, name: str) -> Process:
        port = free_port()
        program = Program(
            f"minilm-{len(self.started)}",
            (sys.executable, str(STAND_IN)),
            {"PORT": str(port), **self.env},
            serves(port),
        )
        child = Child(program, self.logs, lambda child: self.scaler.changed(), lambda account: None)
        child.start()
        self.started.append(child)
        return Process(child, f"http://127.0.0.1:{port}")

    def running(self) -> int:
        """Processes that serve."""
        return sum(child.state == "ready" for child in self.started)

    def asked(self) -> int:
        """Requests that a process has read: one that is only passed on may still be on its way."""
        return sum(child.last_lines().count("asked") for child in self.started)

    def url(self, name: str = NAME) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"


Serve = Callable[..., AbstractAsyncContextManager[Local]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def served(policy: Policy | None = None, **env: str) -> AsyncIterator[Local]:
        local = Local(tmp_path, policy or Policy(window_s=0.4, grace_s=0.2), env)
        async with process.serving(local.scaler, "127.0.0.1", 0, drain_s=0) as local.port:
            try:
                yield local
            finally:
                await local.scaler.close()

    return served


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


def hold_for(seconds: float) -> dict[str, str]:
    return {"ce-holduntil": datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()}


async def test_sessions_take_a_service_from_zero_to_one_to_three_and_back(serve: Serve) -> None:
    async with serve() as local, Sessions(f"http://127.0.0.1:{local.port}/{{bundle}}/{{profile}}/{{pool}}", 1) as held:
        most = 0

        async def reaches(pods: int) -> None:
            nonlocal most
            held.hold(LANE, open_sessions(pods))
            await eventually(lambda: local.running() == pods)
            renewals = time.monotonic() + 1.5  # long enough for each session to be renewed once
            while time.monotonic() < renewals:
                most = max(most, local.running())
                assert local.running() == pods
                await asyncio.sleep(0.01)

        await reaches(1)
        await reaches(3)
        await reaches(1)
        held.hold(LANE, 0)
        await eventually(lambda: local.running() == 0)
        assert most == 3


async def test_no_process_leaves_while_whoever_holds_them_is_away_nor_until_it_had_time_to_ask_again(
    serve: Serve,
) -> None:
    async with serve() as local, Sessions(f"http://127.0.0.1:{local.port}/{{bundle}}/{{profile}}/{{pool}}", 1) as held:
        held.hold(LANE, open_sessions(3))
        await eventually(lambda: local.running() == 3)
        local.unheld = True
        held.hold(LANE, 0)
        away = time.monotonic() + 2.0  # all three are gone after 1.2 s otherwise
        while time.monotonic() < away:
            assert local.running() == 3
            await asyncio.sleep(0.01)
        local.unheld = False
        held.hold(LANE, open_sessions(2))
        await eventually(lambda: local.running() == 2)
        assert [child.state for child in local.started] == ["ready", "ready", "stopped"]
        held.hold(LANE, 0)
        await eventually(lambda: local.running() == 0)


async def test_the_first_request_starts_one_process_and_waits_for_it(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve(START_S="0.3") as local:
        answer = await client.post(local.url())
        assert answer.status_code == 200
        assert answer.json()["worker"] == local.started[0].pid
        assert len(local.started) == 1
        assert local.started[0].ready_s > 0.3
        await eventually(lambda: local.running() == 0)


async def test_a_request_that_waits_too_long_for_a_process_gets_the_activators_504(
    serve: Serve, client: httpx.AsyncClient
) -> None:
    async with serve(Policy(request_timeout_s=0.2), START_S="30") as local:
        answer = await client.post(local.url())
        assert (answer.status_code, answer.text) == (504, "activator request timeout")


async def test_the_timeout_is_counted_from_arrival(serve: Serve, client: httpx.AsyncClient) -> None:
    # From arrival it ends after 4 s, from the process's start on after 7.5 s: room for a busy machine in between.
    async with serve(Policy(request_timeout_s=4.0), START_S="3.5") as local:
        started = time.monotonic()
        answer = await client.post(local.url(), headers=hold_for(30))
        assert answer.status_code == 504
        assert time.monotonic() - started < 7.0


async def test_a_client_that_leaves_takes_its_request_along(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve() as local:
        request = asyncio.create_task(client.post(local.url(), headers=hold_for(30)))
        await eventually(lambda: local.asked() == 1)
        request.cancel()
        await eventually(lambda: "client left" in local.started[0].last_lines())
        assert local.scaler.services[NAME].concurrency.open == 0


async def test_a_process_that_is_taken_away_ends_its_sessions_first(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve(Policy(window_s=0.3, grace_s=0.1)) as local:

        def hold() -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.post(local.url(), headers=hold_for(30)))

        first = [hold() for _ in range(3)]  # all with the first process, which is the first to be ready
        await eventually(lambda: local.running() == 2 and local.asked() == 3)
        last = hold()
        await eventually(lambda: local.asked() == 4)
        for request in first:
            request.cancel()
        assert (await last).json() == {"worker": local.started[1].pid, "draining": True}
        await eventually(lambda: local.running() == 1)


async def test_a_killed_process_breaks_its_sessions_and_serves_again(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve() as local:
        request = asyncio.create_task(client.post(local.url(), headers=hold_for(30)))
        # With less than that in hand it is nobody's request yet, and the next process holds it.
        await eventually(lambda: local.asked() == 1)
        pid = local.started[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert (await request).status_code == 502
        # Until its sockets are gone, too, the dead process takes what it will not answer.
        while (answer := await client.post(local.url())).status_code == 502:
            pass
        assert answer.json()["worker"] != pid
        assert len(local.started) == 1


async def test_killing_does_not_wait_for_a_drain(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve(IGNORE_SIGTERM="1") as local:
        await client.post(local.url())
        closing = asyncio.create_task(local.scaler.close())
        await asyncio.sleep(0)
        started = time.monotonic()
        local.scaler.kill()
        await closing
        assert time.monotonic() - started < 9  # its grace is 10


async def test_a_name_that_is_no_service_is_answered_404_and_not_kept(serve: Serve, client: httpx.AsyncClient) -> None:
    async with serve() as local:
        for name in ("nonsense", "a/b", ""):
            assert (await client.post(local.url(name))).status_code == 404
        assert not local.started
        assert not local.scaler.services
