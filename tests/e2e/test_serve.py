"""``sie serve`` on a folder of specs, over real HTTP: what works, and every kind of bad input with what comes back."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sie_sdk import (
    CancelledByCallerError,
    InferenceError,
    InputTooLongError,
    ModelNotFoundError,
    PoolNotFoundError,
    PoolsUnsupportedError,
    SIEAsyncClient,
    SIEClient,
    WeightsUnavailableError,
)
from tests import tiny_model
from tests.e2e.conftest import SPEC, serving
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

MODEL = "test/tiny"


def test_a_folder_of_specs_is_what_is_served(tiny: str) -> None:
    with SIEClient(tiny) as client:
        assert {model.name for model in client.list_models()} == {"test/tiny", "test/absent"}
        (one,) = client.encode(MODEL, ["hello world"])
        assert one.dense is not None and one.dense.shape == (32,) and one.dense.dtype == np.float32


def test_an_input_without_a_finite_vector_fails_alone(tiny: str) -> None:
    with SIEClient(tiny) as client:
        with pytest.raises(InferenceError) as told:
            client.encode(MODEL, ["hello", "poison", "world"])
        assert told.value.field == "items[1]"
        assert told.value.request_id
        good = client.encode(MODEL, ["hello", "world"])
        assert all(result.dense is not None and np.isfinite(result.dense).all() for result in good)


def test_a_poisoned_request_does_not_disturb_the_others_of_its_batch(tiny: str) -> None:
    async def run() -> list[Any]:
        async with SIEAsyncClient(tiny) as client:
            texts = ["poison" if i % 7 == 3 else "hello " * (i % 5 + 1) for i in range(60)]
            return await asyncio.gather(*(client.encode(MODEL, text) for text in texts), return_exceptions=True)

    outcomes = asyncio.run(run())
    for i, outcome in enumerate(outcomes):
        assert isinstance(outcome, InferenceError) == (i % 7 == 3)


def test_a_text_over_the_token_limit_is_cut_or_refused_as_asked(tiny: str) -> None:
    long = "hello " * 100
    with SIEClient(tiny) as client:
        assert client.encode(MODEL, long).dense is not None
        with pytest.raises(InputTooLongError) as told:
            client.encode(MODEL, ["short", long], options={"overflow_policy": "error"})
        assert (told.value.field, told.value.limit) == ("items[1].text", 32)


def test_queries_get_the_model_s_query_prompt(tiny: str) -> None:
    with SIEClient(tiny) as client:
        query = client.encode(MODEL, "world", is_query=True)
        document = client.encode(MODEL, "hello world")
        assert query.dense is not None and document.dense is not None
        assert float(query.dense @ document.dense) > 0.9999


def test_more_texts_than_fit_one_part_come_back_in_order(tiny: str) -> None:
    texts = [("hello", "world", "ship", "lighthouse")[i % 4] for i in range(1000)]
    with SIEClient(tiny) as client:
        results = client.encode(MODEL, texts)
        firsts = [results[i].dense for i in range(4)]
    assert all(
        result.dense is not None and float(result.dense @ firsts[i % 4]) > 0.9999 for i, result in enumerate(results)
    )


def test_float16_is_computed_on_request(tiny: str) -> None:
    with SIEClient(tiny) as client:
        half = client.encode(MODEL, "hello", output_dtype="float16")
    assert half.dense is not None and half.dense.dtype == np.float16


def test_a_model_whose_weights_are_nowhere_says_where_they_were_looked_for(tiny: str) -> None:
    with SIEClient(tiny) as client, pytest.raises(WeightsUnavailableError) as told:
        client.encode("test/absent", "hello", deadline_s=20)
    assert told.value.details["sources"]


def test_a_misspelt_model_is_told_the_nearest_name(tiny: str) -> None:
    with SIEClient(tiny) as client, pytest.raises(ModelNotFoundError) as told:
        client.encode("test/tinny", "hello")
    assert "test/tiny" in told.value.details["nearest"]


def test_one_process_has_no_pools_and_says_so(tiny: str) -> None:
    with SIEClient(tiny) as client:
        assert [pool.spec.name for pool in client.list_pools()] == ["default"]
        with pytest.raises(PoolsUnsupportedError, match="sie up"):
            client.create_pool("team-a", {"cpu": 1})
        with pytest.raises(PoolNotFoundError):
            client.encode(MODEL, "hello", pool="team-a")
        assert client.encode(MODEL, "hello", pool="default").dense is not None


def test_models_of_two_pools_are_both_warm(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "tiny")
    spec = SPEC.format(path="tiny")
    (tmp_path / "default.yaml").write_text(spec)
    (tmp_path / "support.yaml").write_text(spec.replace("test/tiny", "test/support") + "pool: support\n")
    with serving("--models", str(tmp_path)) as url:
        wait_until(
            lambda: {row["pool"] for row in httpx.get(f"{url}/health").json()["workers"]} == {"default", "support"}
        )
        for model in (MODEL, "test/support"):
            assert httpx.post(f"{url}/v1/encode/{model}", json={"items": [{"text": "hello"}]}).status_code == 200


def test_a_cancelled_call_ends_at_once(tiny: str) -> None:
    cancel = threading.Event()
    cancel.set()
    with SIEClient(tiny) as client, pytest.raises(CancelledByCallerError):
        client.encode(MODEL, "hello", cancel=cancel)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"\xc1", "application/msgpack", 400, "INVALID_INPUT"),
        (b"not json", "application/json", 400, "INVALID_INPUT"),
        (b'{"items": [{"text": null}]}', "application/json", 400, "INVALID_INPUT"),
        (b"a=b", "application/x-www-form-urlencoded", 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"x" * (65 * 1024 * 1024), "application/json", 413, "PAYLOAD_TOO_LARGE"),
        (b'{"items": [{"text": "' + b"x" * (2 * 1024 * 1024 + 1) + b'"}]}', "application/json", 400, "INPUT_TOO_LONG"),
        (
            b'{"items": [{"text": "a"}], "params": {"options": {"overflow_policy": 3}}}',
            "application/json",
            400,
            "INVALID_INPUT",
        ),
    ],
    ids=["no msgpack", "no json", "no content", "a form", "a large body", "a long text", "an unknown policy"],
)
def test_bad_requests_get_a_typed_error_and_the_next_one_works(
    tiny: str, body: bytes, content_type: str, status: int, code: str
) -> None:
    with httpx.Client(base_url=tiny) as client:
        refused = client.post(f"/v1/encode/{MODEL}", content=body, headers={"Content-Type": content_type})
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert refused.json()["error"]["hint"]
        fine = client.post(f"/v1/encode/{MODEL}", json={"items": [{"text": "hello"}]})
        assert fine.status_code == 200


def test_whatever_was_accepted_before_a_stop_is_answered(model_folder: Path) -> None:
    """One at a time, so that most of it is still queued, and nobody else could take it."""
    body = {"items": [{"text": "hello world " * 20}] * 256}
    with ThreadPoolExecutor(20) as threads:
        with serving("--models", str(model_folder), SIE_MAX_IN_HAND="1") as url:
            asked = [threads.submit(httpx.post, f"{url}/v1/encode/{MODEL}", json=body, timeout=60) for _ in range(20)]
            wait_until(lambda: in_flight(url) + sum(each.done() for each in asked) == len(asked))
        assert [each.result().status_code for each in asked] == [200] * len(asked)


def in_flight(url: str) -> int:
    found = re.search(r'requests_in_flight{operation="encode"} (\d+)', httpx.get(f"{url}/metrics").text)
    return int(found[1]) if found else 0
