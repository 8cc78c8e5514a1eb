"""One request from zero on real processes: 202, the bundle's start, the answer, and zero again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sie_sdk import Progress, ProvisioningError, SIEClient
from tests.platform import MODEL, Platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.weights]


@pytest.fixture(params=[60.0])
def platform(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Platform]:
    platform = Platform(tmp_path / "state", quiet_s=request.param)
    platform.up()
    yield platform
    platform.down()


@pytest.mark.parametrize("platform", [4.0], indirect=True, ids=["quiet for 4 s"])
def test_zero_one_zero_and_one_again_with_each_text_computed_once(platform: Platform) -> None:
    assert platform.workers() == []
    told: list[Progress] = []
    with SIEClient(platform.url) as client:
        first = client.encode(MODEL, ["a cat", "a kitten", "interest rates"], progress=told.append)
        wait_until(lambda: platform.computed() == 3)
        assert platform.workers()[0]["loaded_models"] == [MODEL]
        assert {step.state for step in told} >= {"queued", "done"}

        wait_until(lambda: platform.workers() == [])
        wait_until(lambda: not any(name.startswith("default") for name in platform.pids()))

        again = client.encode(MODEL, "a cat")
        assert again.dense is not None and first[0].dense is not None
        # Alone and among others: bfloat16, where the machine takes it, rounds the two differently.
        assert float(again.dense @ first[0].dense) > 0.9999


def test_a_job_is_told_at_once_and_its_repeats_are_the_same_job(platform: Platform) -> None:
    cold = platform.encode("hello", Idempotency_Key="k")
    again = platform.encode("hello", Idempotency_Key="k")
    assert cold.status_code == 202
    assert float(cold.headers["retry-after"]) >= 1
    location = cold.headers["location"]
    done = httpx.get(platform.url + location, headers={"Prefer": "wait=30"}, timeout=60)
    assert done.status_code == 200
    if again.status_code == 202:
        assert again.headers["location"] == location
    repeat = platform.encode("hello", Idempotency_Key="k")
    assert repeat.json() == done.json()
    wait_until(lambda: platform.computed() >= 1)
    assert platform.computed() == 1


def test_the_stages_of_the_timing_add_up_to_the_total(platform: Platform) -> None:
    with SIEClient(platform.url) as client:
        for _ in range(3):
            timing = client.encode(MODEL, "where does the time go").timing
            assert timing is not None
            stages = (
                timing.queue_ms
                + timing.tokenization_ms
                + timing.batch_wait_ms
                + timing.inference_ms
                + timing.postprocessing_ms
            )
            assert stages == pytest.approx(timing.total_ms, rel=0.05)
            assert timing.inference_ms > 0


def test_a_client_that_will_not_wait_is_told_that_its_job_is_queued(platform: Platform) -> None:
    with SIEClient(platform.url) as client, pytest.raises(ProvisioningError) as told:
        client.encode(MODEL, "not now", wait_for_capacity=False)
    done = httpx.get(platform.url + told.value.details["location"], headers={"Prefer": "wait=30"}, timeout=60)
    assert done.status_code == 200
