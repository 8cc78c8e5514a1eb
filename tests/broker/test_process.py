"""``python -m sie_broker`` as a process: it says that it holds, and a signal ends it with 0."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from sie_broker.jetstream.nats_broker import NatsBroker

BEGAN = "import time; now = time.time(); from sie_broker.process import began; print(began(), now)"


def test_a_process_knows_when_it_began() -> None:
    before = time.time()
    told = subprocess.run([sys.executable, "-c", BEGAN], capture_output=True, text=True, check=True).stdout
    began, when_it_ran = map(float, told.split())
    assert before - 0.02 <= began < when_it_ran


@pytest.mark.e2e
async def test_the_process_says_that_it_holds_demand_and_ends_on_sigterm(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="config")
    await broker.connect()
    await broker.provision([])
    await broker.close()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sie_broker",
        env=os.environ | {"SIE_NATS_URL": nats_url},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(20):
            assert b"holding demand" in await process.stderr.readline()
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.e2e
async def test_a_wrong_setting_stops_the_start_with_one_line() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sie_broker",
        env=os.environ | {"SIE_MAX_SCALE": "none"},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert len(said.decode().splitlines()) == 1
    assert "SIE_MAX_SCALE" in said.decode()
