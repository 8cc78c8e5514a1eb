"""``python -m sie_broker`` as a process: it says that it holds, and a signal ends it with 0."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from sie_broker import process
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_sdk.errors import ConfigurationError

BEGAN = "import time; now = time.time(); from sie_broker.process import began; print(began(), now)"


LEAVES = """
import asyncio, sys, threading
from concurrent.futures import ThreadPoolExecutor
from sie_broker import process

async def main() -> None:
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    print("at work")
    if {fails}:
        raise RuntimeError("a fault of ours")

process.run("test", main)
"""
"""A process with a thread that never ends."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_leaves_whatever_its_threads_still_do_and_what_it_said_is_there(fails: bool) -> None:
    command = [sys.executable, "-c", LEAVES.format(fails=fails)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (fails, "at work\n")
    assert ("RuntimeError: a fault of ours" in done.stderr) == fails


def test_a_process_knows_when_it_began() -> None:
    before = time.time()
    told = subprocess.run([sys.executable, "-c", BEGAN], capture_output=True, text=True, check=True).stdout
    began, when_it_ran = map(float, told.split())
    assert before - 0.02 <= began < when_it_ran


@pytest.mark.parametrize("value", ["-1", "65536", "99999999999", "http"])
def test_what_is_no_port_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"PORT=.*{value}") as caught:
        process.port({"PORT": value})
    assert caught.value.field == "PORT"


async def test_an_address_of_another_machine_is_not_blamed_on_the_port() -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot listen on 192\.0\.2\.1:0") as caught:
        async with process.serving(None, "192.0.2.1", 0):
            raise AssertionError("not reached")
    assert caught.value.field == "SIE_HOST"


def test_a_level_of_the_log_is_one_of_those_there_are() -> None:
    assert process.log_level({"SIE_LOG_LEVEL": "debug"}) == "DEBUG"
    with pytest.raises(ConfigurationError, match="SIE_LOG_LEVEL='foo' is wrong: one of DEBUG, INFO, WARNING, ERROR"):
        process.log_level({"SIE_LOG_LEVEL": "foo"})


@pytest.mark.e2e
async def test_the_process_says_that_it_holds_demand_and_ends_on_sigterm(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="config")
    await broker.connect()
    await broker.provision([])
    await broker.close()
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sie_broker",
        env=os.environ | {"SIE_NATS_URL": nats_url},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert started.stderr is not None
        async with asyncio.timeout(20):
            assert b"holding demand" in await started.stderr.readline()
            started.terminate()
            assert await started.wait() == 0
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


@pytest.mark.e2e
async def test_a_wrong_setting_stops_the_start_with_one_line() -> None:
    await refused("SIE_MAX_SCALE", "none")
    await refused("SIE_LOG_LEVEL", "foo")


async def refused(variable: str, value: str) -> None:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sie_broker", env=os.environ | {variable: value}, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        _, said = await started.communicate()
    assert started.returncode == 1
    assert len(said.decode().splitlines()) == 1
    assert variable in said.decode()
