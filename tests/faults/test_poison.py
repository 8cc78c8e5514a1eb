"""Requests that kill their worker each time: five workers die, each becomes a dead letter, all others are answered."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from sie_broker.records import MAX_DELIVERIES
from sie_sdk import results, wire
from sie_sdk.types import EncodeRequest, Item
from tests.faults.callers import AGAIN, Asked, Load, asked
from tests.faults.deployment import IN_HAND, MODEL, Deployment
from tests.faults.noop_bundle import vector
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

log = logging.getLogger("faults")

WORKER = "bundle-1"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, SIE_ACK_WAIT_S="2", NOOP_DELAY_S="0.05")
    yield deployment
    deployment.close()


class Poisoner:
    """Callers of one poison each, as impatient as plain HTTP is: what they are told is final."""

    def __init__(self, url: str, poisons: list[Asked]) -> None:
        self.told: dict[str, httpx.Response] = {}
        self._url = url
        self._threads = [threading.Thread(target=self._ask, args=(poison,), daemon=True) for poison in poisons]
        for thread in self._threads:
            thread.start()

    def finished(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _ask(self, poison: Asked) -> None:
        body = wire.request_body(EncodeRequest([Item(text=poison.text)]))
        headers = {"Content-Type": wire.MSGPACK, "Accept": wire.MSGPACK, "Idempotency-Key": poison.key}
        reply = httpx.post(f"{self._url}/v1/encode/{MODEL}", content=body, headers=headers, timeout=150)
        while reply.status_code == 202:
            where = self._url + reply.headers["location"]
            reply = httpx.get(where, headers={"Accept": wire.MSGPACK, "Prefer": "wait=10"}, timeout=30)
        self.told[poison.id] = reply


@contextmanager
def revived(deployment: Deployment) -> Iterator[list[int]]:
    """Start the worker again whenever it has died, as Kubernetes would; yields one entry per death."""
    deaths: list[int] = []
    over = threading.Event()

    def revive() -> None:
        while not over.wait(0.05):
            if not deployment.alive(WORKER):
                deaths.append(len(deaths))
                with suppress(AssertionError):  # it died again before it was ready
                    deployment.start(WORKER)

    thread = threading.Thread(target=revive)
    thread.start()
    try:
        yield deaths
    finally:
        over.set()
        thread.join()


def dlq(deployment: Deployment, *words: str) -> str:
    """What ``sie dlq`` says."""
    env = os.environ | {"SIE_NATS_URL": deployment.nats_url}
    done = subprocess.run(
        [sys.executable, "-m", "sie_sdk.cli", "dlq", *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def letters(deployment: Deployment) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, dlq(deployment, "list", "--json").splitlines())}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, 4])
def test_a_poison_dies_alone_and_everybody_else_is_answered_once(deployment: Deployment, count: int) -> None:
    poisons = [asked(f"poison {number}") for number in range(count)]
    deployment.up("demand")
    deployment.start(WORKER, NOOP_POISON=",".join(poison.id for poison in poisons))
    with revived(deployment) as deaths:
        load = Load([deployment.url()], 400)
        load.await_answered(50)
        poisoner = Poisoner(deployment.url(), poisons)
        wait_until(poisoner.finished, 150)
        load.finish()

    # The poisons: tried five times, their callers told, kept with all they came with.
    begun = Counter(line.id for line in deployment.recorded("start"))
    assert letters(deployment).keys() == {poison.id for poison in poisons}
    for poison in poisons:
        told = poisoner.told[poison.id]
        assert (told.status_code, told.headers["x-sie-error-code"]) == (500, "WORK_EXHAUSTED")
        assert letters(deployment)[poison.id]["deliveries"] == MAX_DELIVERIES
    if count == 1:
        assert begun[poisons[0].id] == MAX_DELIVERIES == len(deaths)

    # Everybody else: answered once, and computed once but for what a death destroyed on its way.
    answers = Counter(load.answered)
    assert answers == {request.id: 1 for request in load.requests}
    assert not load.wrong
    done = Counter(line.id for line in deployment.recorded("done"))
    for_callers = {id for id in done if id.endswith(AGAIN)}
    came_again = load.met.total() - load.met["200"] - load.met["202"]
    assert len(for_callers) <= came_again, load.met
    assert done.keys() - for_callers == answers.keys()
    assert done.total() - len(done) <= len(deaths) * IN_HAND
    log.info("%d deaths; computed again %d of %d; met %s", len(deaths), done.total() - len(done), len(done), load.met)

    # Mended, they are tried again under their own ids, and their results take the errors' place.
    deployment.stop(WORKER)
    deployment.start(WORKER, NOOP_POISON="nothing")
    assert poisons[0].text in dlq(deployment, "show", poisons[0].id)
    dlq(deployment, "replay", "--all", "--model", MODEL)
    for poison in poisons:
        wait_until(lambda id=poison.id: job(deployment, id).status_code == 200)  # type: ignore[misc]
        (result,) = results.read_encode(job(deployment, poison.id).content)
        assert result.dense is not None
        assert result.dense.tolist() == vector(poison.text)
    assert letters(deployment) == {}


def job(deployment: Deployment, job_id: str) -> httpx.Response:
    return httpx.get(f"{deployment.url()}/v1/jobs/{job_id}", headers={"Accept": wire.MSGPACK}, timeout=10)
