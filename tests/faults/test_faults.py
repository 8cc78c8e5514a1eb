"""kill -9 of each part while work is under way: every accepted request is answered, with the right vectors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sie_sdk import EncodeResult, SIEClient
from tests.platform import MODEL, Platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

TEXTS = [f"This is sentence number {i} of the load." for i in range(60)]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "state")
    platform.up()
    yield platform
    platform.down()


class Load:
    """Sixty callers with one text each, through the SDK."""

    def __init__(self, client: SIEClient) -> None:
        self.client = client
        self._threads = ThreadPoolExecutor(max_workers=12)
        self._calls = [
            self._threads.submit(self.client.encode, MODEL, text, deadline_s=150.0, idempotency_key=f"load-{i}")
            for i, text in enumerate(TEXTS)
        ]

    @property
    def answered(self) -> int:
        return sum(call.done() for call in self._calls)

    def results(self) -> list[EncodeResult]:
        return [call.result(160) for call in self._calls]


@pytest.fixture
def load(platform: Platform) -> Iterator[Load]:
    """The load under way, a few of it answered."""
    with SIEClient(platform.url) as client:
        load = Load(client)
        wait_until(lambda: load.answered > 5)
        yield load


def assert_right(load: Load) -> None:
    """Each caller got the vector of its own text."""
    results = load.results()
    again = load.client.encode(MODEL, TEXTS)
    for got, expected in zip(results, again, strict=True):
        assert got.dense is not None and expected.dense is not None
        assert float(got.dense @ expected.dense) > 0.9999


def test_a_killed_bundle_loses_no_request(platform: Platform, load: Load) -> None:
    platform.kill("default")
    assert_right(load)


def test_a_killed_ingress_loses_no_request(platform: Platform, load: Load) -> None:
    platform.kill("ingress")
    assert_right(load)


def test_a_killed_nats_server_loses_no_request(platform: Platform, load: Load) -> None:
    platform.kill("nats")
    assert_right(load)


def test_a_killed_demand_holder_is_replaced_and_the_lane_still_starts(platform: Platform) -> None:
    before = platform.kill("demand")
    wait_until(lambda: platform.pids().get("demand", before) != before)
    answer = platform.encode("hello", Prefer="wait=30")
    assert answer.status_code == 200


def test_work_queued_at_the_stop_is_done_after_the_next_start(tmp_path: Path) -> None:
    platform = Platform(tmp_path / "state")
    platform.up()
    job = platform.encode("left behind")
    assert job.status_code == 202
    platform.down()
    platform.up()
    try:
        # A message given back just before the server stopped is out for the rest of its 30 s lease after a restart.
        done = httpx.get(platform.url + job.headers["location"], headers={"Prefer": "wait=60"}, timeout=90)
        assert done.status_code == 200
        assert len(done.json()["items"][0]["dense"]["values"]) == 384
    finally:
        platform.down()
