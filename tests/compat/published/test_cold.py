"""Published sie-sdk and a platform of which nothing runs: it wakes up, it waits, it loses workers, it stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.compat.every_task import RERANKER, TAGGER
from tests.compat.published.conftest import DRIVEN, TINY, VERSION
from tests.compat.published.remote import Call, Client, Flavour, Outcome, Remote, array, call
from tests.e2e.conftest import serving
from tests.platform import Platform, wait_until

pytestmark = DRIVEN

HELLO = {"text": "hello"}
LEASE_S = "3"


@pytest.fixture(scope="module")
def platform(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A ``sie up`` whose workers go half a second after the last work, and are missed after three."""
    before = os.environ.get("SIE_ACK_WAIT_S")
    os.environ["SIE_ACK_WAIT_S"] = LEASE_S
    platform = Platform(tmp_path_factory.mktemp("cold"), quiet_s=0.5)
    try:
        platform.up(0, "--models", str(models))
        yield platform
    finally:
        platform.down()
        if before is None:
            del os.environ["SIE_ACK_WAIT_S"]


@pytest.fixture
def cold(platform: Platform) -> Platform:
    """Without a single worker."""
    wait_until(lambda: not platform.workers())
    return platform


@pytest.fixture
def client(remote: Remote, flavour: Flavour, platform: Platform) -> Client:
    """Each published client with that platform."""
    return Client(remote, flavour, platform.url)


@pytest.mark.parametrize(
    "asked",
    [call("encode", TINY, HELLO), call("score", RERANKER, HELLO, [HELLO]), call("extract", TAGGER, HELLO)],
    ids=["encode", "score", "extract"],
)
def test_the_first_call_of_all_is_answered_from_zero(client: Client, cold: Platform, asked: Call) -> None:
    (outcome,) = client.run(asked).outcomes
    assert outcome.raised is None
    assert outcome.retries >= 1
    if asked.method == "encode":
        assert np.isfinite(array(outcome.result["dense"])).all()


def test_a_cold_platform_never_answers_202_to_a_published_client_and_says_when_to_look_again(cold: Platform) -> None:
    answer = httpx.post(
        f"{cold.url}/v1/encode/{TINY}",
        json={"items": [HELLO]},
        headers={"X-SIE-SDK-Version": VERSION, "Prefer": "wait=0"},
    )
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (503, "PROVISIONING")
    assert 0.25 <= float(answer.headers["retry-after"]) <= 5
    lanes = httpx.get(f"{cold.url}/health").json()["lanes"]
    assert all(lane["waiting"] == 0 for lane in lanes), "nothing is queued for somebody who asks again"


def test_a_caller_that_does_not_wait_for_capacity_is_told_of_it_at_once(client: Client, cold: Platform) -> None:
    outcome = client("encode", TINY, HELLO, wait_for_capacity=False)
    assert outcome.error["class"] == "ProvisioningError"
    assert 0 < outcome.error["retry_after"] <= 5
    assert not outcome.waits


def test_a_caller_whose_time_is_up_before_anything_runs_is_told_of_it(client: Client, cold: Platform) -> None:
    def asked() -> Outcome:
        # Shorter than any pause it is told to make, and the patience of its try, too: long enough for a busy machine.
        return client("encode", TINY, HELLO, provision_timeout_s=0.2)

    def there_when_asked_again() -> bool:
        asked()
        return bool(cold.workers())

    assert asked().error["class"] == "ProvisioningError"
    # Half a second's demand may be over before a busy machine has started anything: it asks on, as callers do.
    wait_until(there_when_asked_again)


def test_a_worker_killed_with_the_request_in_hand_costs_time_and_no_answer(client: Client, platform: Platform) -> None:
    texts = [{"text": "word " * 200, "id": str(place)} for place in range(32)]
    client("encode", TINY, HELLO)
    wait_until(lambda: not any(worker["queue_depth"] for worker in platform.workers()))  # the last heartbeat is older
    with ThreadPoolExecutor(1) as thread:
        asked: Future[Outcome] = thread.submit(lambda: client("extract", TAGGER, texts))
        wait_until(lambda: any(worker["queue_depth"] for worker in platform.workers()), 60)
        platform.kill("default")
        outcome = asked.result(120)
    assert [one["id"] for one in outcome.result] == [str(place) for place in range(32)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ingress_that_stops_or_dies_while_they_wait_is_waited_for(
    client: Client, platform: Platform, number: signal.Signals
) -> None:
    texts = [{"text": "word " * 200} for _ in range(24)]
    client("encode", TINY, HELLO)
    ingress = platform.pids()["ingress"]  # found before, for it takes as long as the work does
    with ThreadPoolExecutor(1) as thread:
        asked: Future[Outcome] = thread.submit(lambda: client("extract", TAGGER, texts))
        wait_until(lambda: being_extracted(platform.url))
        os.kill(ingress, number)
        outcome = asked.result(120)
    assert len(outcome.result) == 24
    # One that is told to stop answers what it can before it does.
    assert outcome.retries >= 1 or number is signal.SIGTERM


def test_a_request_that_takes_longer_than_it_is_held_is_computed_once_and_answered(
    remote: Remote, flavour: Flavour, models: Path
) -> None:
    texts = [{"text": f"word {place} " * 150, "id": str(place)} for place in range(12)]
    with serving("--models", str(models), SIE_REQUEST_TIMEOUT_S="0.05") as url:
        client = Client(remote, flavour, url)
        client("extract", TAGGER, HELLO)
        before = computed(url)
        outcome = client("extract", TAGGER, texts)
        assert [one["id"] for one in outcome.result] == [str(place) for place in range(12)]
        assert outcome.retries >= 1
        assert computed(url) - before == 12


def being_extracted(url: str) -> bool:
    """Whether it has accepted a request to extract that it has not answered; it knows at once, unlike heartbeats."""
    return 'requests_in_flight{operation="extract"} 1.0' in httpx.get(f"{url}/metrics").text


def computed(url: str) -> int:
    """Texts computed; a heartbeat tells it a moment later."""
    rows: list[int] = []

    def steady() -> bool:
        rows.append(sum(each["texts_computed"] for each in httpx.get(f"{url}/health").json()["workers"]))
        time.sleep(0.5)
        return rows[-4:] == [rows[-1]] * 4

    wait_until(steady)
    return rows[-1]


def test_a_single_process_that_is_told_to_stop_answers_what_it_has_in_hand(
    remote: Remote, flavour: Flavour, models: Path
) -> None:
    texts = [{"text": "word " * 200} for _ in range(4)]
    with ThreadPoolExecutor(1) as thread:
        with serving("--models", str(models)) as url:
            client = Client(remote, flavour, url)
            client("extract", TAGGER, HELLO)
            asked: Future[Outcome] = thread.submit(lambda: client("extract", TAGGER, texts))
            wait_until(lambda: being_extracted(url))
        outcome = asked.result(60)
    assert len(outcome.result) == 4
