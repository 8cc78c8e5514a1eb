"""Fixtures every suite may use: a real nats-server on a free port, a connected broker of either kind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sie_broker.contract import Broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.memory import MemoryBroker
from sie_local import ports

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a shell's background job, and would be in every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is not a failing test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Those who test beside us choose ports as well, and one that is chosen is not listened on for a second or two.
_share = (ports.LAST - ports.FIRST) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
ports.FIRST += _share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ports.LAST = ports.FIRST + _share - 1

NATS_SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"


def pytest_collection_finish() -> None:
    """Keep the collector from looking through half a million objects of the tests themselves in the middle of one."""
    gc.freeze()


@contextmanager
def running_nats(folder: Path, port: int = -1, more: str = "") -> Iterator[str]:
    """A real nats-server with JetStream on file storage in ``folder``, on any free port; yields its URL.

    ``more``: of its configuration.
    """
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\nmax_payload: {MAX_PAYLOAD_BYTES}\n'
        f'jetstream {{ store_dir: "{folder}/store" }}\nports_file_dir: "{folder}"\n{more}'
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([NATS_SERVER, "-c", config], stdout=log, stderr=log)
        try:
            yield _listen_url(folder, process)
        finally:
            process.terminate()
            process.wait(60)  # its files are written out first, which takes 10 s where the disk is busy


def _listen_url(folder: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        for told in folder.glob(f"*_{process.pid}.ports"):
            if (text := told.read_text()).strip().endswith("}"):
                return str(json.loads(text)["nats"][0])
        time.sleep(0.01)
    raise RuntimeError(f"nats-server did not start: {(folder / 'log').read_text()}")


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "nats"
    folder.mkdir()
    with running_nats(folder) as url:
        yield url


@pytest.fixture(params=["memory", "nats"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A connected broker, once of each kind."""
    real = request.param == "nats"
    made: Broker = NatsBroker(request.getfixturevalue("nats_url"), name="test") if real else MemoryBroker()
    await made.connect()
    yield made
    await made.close()


async def eventually(holds: Callable[[], bool | Awaitable[bool]], deadline_s: float = 30.0) -> None:
    """Wait until ``holds()``, which may have to be awaited; fail when it does not within the deadline."""
    end = time.monotonic() + deadline_s
    while not (held if isinstance(held := holds(), bool) else await held):
        assert time.monotonic() < end, f"not within {deadline_s} s"
        await asyncio.sleep(0.005)
