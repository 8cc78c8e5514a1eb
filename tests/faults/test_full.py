"""A full queue and a full disk: what is refused is told so, what was accepted is answered, and with room it goes on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy
from tests.faults.deployment import SERVERS
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

WAITING = 50
DISK_BYTES = 64 << 20


def test_a_full_queue_refuses_what_it_does_not_accept_and_answers_what_it_does(deploy: Deploy) -> None:
    deployment = deploy(delay_s=0.02, SIE_WORK_MAX_MESSAGES=str(WAITING), SIE_COLD_START_S="1")
    deployment.up()
    load = Load([deployment.url()], 200, 200)
    wait_until(lambda: load.met["QUEUE_FULL"] >= 150 and len(load.accepted) >= WAITING)
    assert len(load.accepted) == WAITING, "accepted is what has a place in the queue"
    deployment.start("bundle-1")
    again = account(deployment, load)
    assert not again.begun_again
    after = Load([deployment.url()], 100)
    account(deployment, load, after)
    assert set(after.met) == {"200"}, "the service has recovered"


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[None]:
    """A file system of `DISK_BYTES`, in memory."""
    at.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(at)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


def fill(disk: Path) -> Path:
    """Take all that is left; returns what to remove to have it back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_refuses_new_work_and_loses_none_that_was_accepted(deploy: Deploy) -> None:
    deployment = deploy()
    (server,) = SERVERS[:1]
    with small_disk(deployment.folder / server):
        deployment.up("bundle-1", "bundle-2")
        load = Load([deployment.url()], 600)
        load.await_answered(100)
        filler = fill(deployment.folder / server)
        wait_until(lambda: load.met["QUEUE_UNAVAILABLE"] + load.met["QUEUE_FULL"] > 0, 60)
        filler.unlink()
        if not deployment.serves(server):  # JetStream turns itself off; the health check has the server restarted
            deployment.kill(server)
            deployment.start(server)
        again = account(deployment, load)
        deployment.close()
    assert len(again.computed_again) <= CALLERS, "what was acknowledged could not be written down"
