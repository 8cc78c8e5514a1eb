"""Pools on real processes: a worker without any request, work that only it computes, and home again at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from sie_sdk import PoolInfo, PoolNotFoundError, SIEClient
from tests.platform import Platform, wait_until

pytestmark = pytest.mark.e2e

MODEL = "test/tiny"
TEAM = {"name": "team-a", "gpus": {"cpu": 1}, "minimum_worker_count": 1}


@pytest.fixture
def platform(tmp_path: Path, model_folder: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "state")
    platform.up(0, "--models", str(model_folder), "--max-scale", "2")
    yield platform
    platform.down()


@pytest.fixture
def client(platform: Platform) -> Iterator[SIEClient]:
    with SIEClient(platform.url) as client:
        yield client


def encode(platform: Platform, text: str, **headers: str) -> httpx.Response:
    """One plain request that waits for its worker."""
    named = {name.replace("_", "-"): value for name, value in headers.items()} | {"Prefer": "wait=60"}
    body = {"items": [{"text": text}]}
    return httpx.post(f"{platform.url}/v1/encode/{MODEL}", json=body, headers=named, timeout=90)


def pool(client: SIEClient) -> PoolInfo:
    info = client.get_pool("team-a")
    assert info is not None
    return info


def working_for(platform: Platform) -> dict[str, str]:
    return {worker["name"]: worker["pool"] for worker in platform.workers()}


def test_a_pool_brings_up_its_worker_computes_with_it_alone_and_gives_it_back(
    platform: Platform, client: SIEClient
) -> None:
    assert platform.workers() == []
    made = client.create_pool("team-a", {"cpu": 1}, minimum_worker_count=1, ttl_s=12)
    assert made.status.state == "pending"

    wait_until(lambda: client.renew_pool("team-a") and pool(client).status.state == "active")
    (member,) = pool(client).status.assigned_workers
    assert (member.gpu, member.bundle) == ("cpu", "default")
    assert working_for(platform) == {member.name: "team-a"}

    inside = encode(platform, "hello world", X_SIE_Pool="team-a")
    assert (inside.status_code, inside.headers["x-sie-worker"]) == (200, member.name)
    assert client.renew_pool("team-a")
    renewed = time.time()
    outside = encode(platform, "hello world")
    assert outside.status_code == 200
    assert outside.headers["x-sie-worker"] != member.name, "its worker computes only what is asked of the pool"

    wait_until(lambda: working_for(platform).get(member.name) == "default")
    assert time.time() - renewed >= 11.5
    wait_until(lambda: client.get_pool("team-a") is None)
    late = encode(platform, "hello world", X_SIE_Pool="team-a")
    assert (late.status_code, late.json()["error"]["code"]) == (404, "POOL_NOT_FOUND")
    assert encode(platform, "world hello").status_code == 200


def test_a_leased_pool_outlives_its_ttl_and_every_other_part_and_goes_with_its_block(
    platform: Platform, client: SIEClient
) -> None:
    with client.pool("team-a", {"cpu": 1}, minimum_worker_count=1, ttl_s=9) as team:
        wait_until(lambda: pool(client).status.state == "active")
        (member,) = pool(client).status.assigned_workers
        made = pool(client).status.created_at
        for part in ("ingress", "demand", "config", "nats"):
            wait_until(partial(replaced, platform, part, platform.kill(part)))
        wait_until(lambda: ready(platform))
        result = client.encode(MODEL, "hello world", pool=team.name)
        assert result.dense is not None and result.dense.shape == (32,)
        wait_until(lambda: pool(client).status.last_renewed > made + 9)
        assert pool(client).status.created_at == made
        assert working_for(platform) == {member.name: "team-a"}
    assert client.get_pool("team-a") is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sie-pool")]
    wait_until(lambda: set(working_for(platform).values()) <= {"default"})


def replaced(platform: Platform, part: str, killed: int) -> bool:
    return platform.pids().get(part, killed) != killed


def ready(platform: Platform) -> bool:
    try:
        return httpx.get(f"{platform.url}/readyz", timeout=1).is_success
    except httpx.TransportError:
        return False


def test_a_pool_that_ends_under_load_answers_everything_it_accepted(platform: Platform, client: SIEClient) -> None:
    client.create_pool("team-a", {"cpu": 1}, minimum_worker_count=1)
    wait_until(lambda: pool(client).status.state == "active")
    answered, refused = 0, 0
    lock = threading.Lock()

    def caller(number: int) -> None:
        nonlocal answered, refused
        for turn in range(60):
            try:
                result = client.encode(MODEL, "hello world", pool="team-a", deadline_s=90)
            except PoolNotFoundError:
                with lock:
                    refused += 1
                return
            assert result.dense is not None
            with lock:
                answered += 1
            if number == 0 and turn == 20:
                assert client.delete_pool("team-a")

    with ThreadPoolExecutor(max_workers=6) as threads:
        for call in [threads.submit(caller, number) for number in range(6)]:
            call.result(150)
    assert answered > 20 and refused == 6
    wait_until(lambda: set(working_for(platform).values()) == {"default"})
    # Everything that was accepted has been computed, and nothing twice: what is left in no queue was answered.
    wait_until(lambda: platform.computed() == answered)


def test_a_pool_whose_worker_is_killed_gets_another(platform: Platform, client: SIEClient) -> None:
    client.create_pool("team-a", {"cpu": 1}, minimum_worker_count=1)
    wait_until(lambda: pool(client).status.state == "active")
    (member,) = pool(client).status.assigned_workers
    platform.kill("default")
    wait_until(lambda: member.name not in {worker.name for worker in pool(client).status.assigned_workers})
    wait_until(lambda: pool(client).status.state == "active")
    assert encode(platform, "hello world", X_SIE_Pool="team-a").status_code == 200


def test_a_pool_does_not_wait_until_the_only_worker_has_been_idle_for_long(tmp_path: Path, model_folder: Path) -> None:
    """As under `sie up` on two or three cores."""
    platform = Platform(tmp_path / "state")
    platform.up(0, "--models", str(model_folder), "--max-scale", "1", "--quiet-s", "300")
    try:
        with SIEClient(platform.url) as client:
            client.encode(MODEL, "hello")
            client.create_pool("team-a", {"cpu": 1})
            for pool in ("team-a", None, "team-a"):
                client.encode(MODEL, "hello", pool=pool, deadline_s=60)
    finally:
        platform.down()
