"""The supervisor with the real NATS server, config service and demand holder; ingress and bundle are stand-ins."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Lane, Work
from sie_local.programs import Options, own_commands
from sie_local.state import ProcessRecord, Record, StateFolder
from sie_local.status import look
from sie_local.supervisor import Supervisor
from sie_sdk.errors import StartFailedError, UnavailableError
from tests.conftest import eventually
from tests.faults.test_full import fill, small_disk

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_bundle.py")))

pytestmark = pytest.mark.e2e


class Platform:
    """A supervisor that runs, and what it said."""

    def __init__(self, folder: StateFolder) -> None:
        self.folder = folder
        self.said: list[str] = []

    def record(self) -> Record:
        record = self.folder.read()
        assert record is not None
        return record

    def processes(self) -> dict[str, ProcessRecord]:
        return {process.name: process for process in self.record().processes}

    def bundles(self) -> int:
        """Ready processes of the lane, as `sie status` counts them."""
        return look(self.folder).bundles.get("minilm.cpu.default", 0)


Up = Callable[..., AbstractAsyncContextManager[Platform]]


@pytest.fixture
def up(tmp_path: Path) -> Up:
    @asynccontextmanager
    async def run(**commands: tuple[str, ...]) -> AsyncIterator[Platform]:
        folder = StateFolder(tmp_path / "state")
        platform, stop = Platform(folder), asyncio.Event()
        stand_ins = {"ingress": STAND_IN, "bundle": STAND_IN}
        options = Options(state=folder.path, port=0, models="all-MiniLM-L6-v2", quiet_s=0.5, max_scale=2)
        with folder.locked():
            supervisor = Supervisor(options, folder, {**own_commands(), **stand_ins, **commands}, platform.said.append)
            running = asyncio.create_task(supervisor.run(stop))
            await eventually(lambda: running.done() or platform.record().ready if folder.read() else running.done())
            try:
                if not running.done():
                    yield platform
            finally:
                stop.set()
                await running

    return run


@asynccontextmanager
async def work_queued(platform: Platform) -> AsyncIterator[NatsBroker]:
    """One request waits, and whoever holds demand was told; the connection it was sent by."""
    broker = NatsBroker(platform.record().nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "m")])
    await broker.submit(Work(id="1", op="encode", lane=LANE, model="m", data=b"", time=time.time()))
    broker.wake(LANE)
    try:
        yield broker
    finally:
        await broker.close()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def restarted(platform: Platform, name: str, times: int) -> bool:
    return platform.processes()[name].restarts == times


async def test_it_comes_up_says_how_long_that_took_and_goes_without_a_trace(up: Up) -> None:
    async with up() as platform:
        assert sorted(platform.processes()) == ["config", "demand", "ingress", "nats"]
        assert re.match(r"Ready in \d+\.\d s: http://", platform.said[-1])
        assert look(platform.folder).ready
        pids = [process.pid for process in platform.processes().values()]
    assert all(gone(pid) for pid in pids)


async def test_who_has_no_use_for_vectors_does_not_load_what_computes_them(up: Up) -> None:
    async with up() as platform:
        for name in ("config", "demand"):  # numpy is 12 MB and a fifth of their start
            assert "numpy" not in mapped(platform.processes()[name].pid)


async def test_work_in_the_queue_starts_a_bundle_and_its_end_stops_it(up: Up) -> None:
    async with up() as platform, work_queued(platform) as broker:
        await eventually(lambda: platform.bundles() == 1)
        await broker.nc.jetstream().purge_stream("WORK_default")
        await eventually(lambda: platform.bundles() == 0 and len(platform.processes()) == 4)


async def test_a_killed_process_is_started_again_and_reported(up: Up) -> None:
    async with up() as platform:
        killed = platform.processes()["ingress"].pid
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: platform.processes()["ingress"].restarts == 1)
        await eventually(lambda: platform.processes()["ingress"].state == "ready")
        assert platform.processes()["ingress"].pid != killed
        assert any(f"ingress (pid {killed}) was killed by SIGKILL" in text for text in platform.said)


async def test_a_bundle_outlives_the_demand_holder_however_long_that_one_is_away(up: Up) -> None:
    async with up() as platform, work_queued(platform) as broker:
        await eventually(lambda: platform.bundles() == 1)
        bundle = platform.processes()["minilm.cpu.default-1"].pid
        for times in range(1, 5):  # dead for 0.5, 1, 2 and 4 s; an idle bundle leaves after 3 s
            os.kill(platform.processes()["demand"].pid, signal.SIGKILL)
            await eventually(partial(restarted, platform, "demand", times))
        await eventually(lambda: platform.processes()["demand"].state == "ready")
        await eventually(lambda: platform.bundles() == 1)
        assert platform.processes()["minilm.cpu.default-1"].pid == bundle
        await broker.nc.jetstream().purge_stream("WORK_default")
        await eventually(lambda: platform.bundles() == 0)


async def test_a_start_that_fails_is_told_with_the_last_words_and_leaves_nothing(up: Up) -> None:
    words = (sys.executable, "-c", "import sys; print('no such spec'); sys.exit(1)")
    with pytest.raises(StartFailedError, match=r"config \(pid \d+\) exited with status 1") as failed:
        async with up(config=words):
            pass
    assert "  | no such spec" in str(failed.value)


async def test_a_bundle_that_keeps_dying_is_told_in_full_once(up: Up) -> None:
    words = (sys.executable, "-c", "print('no such model'); raise SystemExit(1)")
    async with up(bundle=words) as platform:
        broker = NatsBroker(platform.record().nats_url, name="test")
        await broker.connect()
        broker.wake(LANE)
        await eventually(lambda: any(text.endswith(", as before") for text in platform.said))
        assert sum("no such model" in text for text in platform.said) == 1
        await broker.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
async def test_after_a_moment_of_full_disk_the_queue_is_back_and_meanwhile_nobody_calls_it_ready(
    up: Up, tmp_path: Path
) -> None:
    disk = tmp_path / "state"
    with small_disk(disk):
        async with up() as platform:
            broker = NatsBroker(platform.record().nats_url, name="test")
            await broker.connect()
            await broker.provision([(LANE, "m")])

            sent: list[float] = []

            async def takes_work() -> bool:
                try:
                    await broker.submit(Work(uuid.uuid4().hex, "encode", LANE, "m", b"x" * 65_536, time.time()))
                except UnavailableError:
                    return False
                sent.append(time.time())
                return True

            async def refuses_work() -> bool:
                return not await takes_work()

            assert await takes_work() and look(platform.folder).ready
            filler = fill(disk)
            await eventually(refuses_work)
            await eventually(lambda: not look(platform.folder).ready)
            accepted = len(sent)
            await eventually(lambda: any("did its work no more" in told for told in platform.said))  # and starts again
            filler.unlink()
            await eventually(takes_work, deadline_s=60)
            await eventually(lambda: look(platform.folder).ready)
            assert (await broker.backlog())[LANE] >= accepted
            await broker.close()
