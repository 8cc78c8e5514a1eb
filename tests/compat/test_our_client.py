"""Our own client against both servers with the real model: lists, streams, jobs, capacity; threads and children."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sie_sdk import EncodeResult, InputTooLongError, Progress, SIEAsyncClient, SIEClient, scoring
from tests.compat import every_task
from tests.e2e.conftest import serving
from tests.platform import MODEL, Platform

pytestmark = [pytest.mark.compat, pytest.mark.weights]

TEXTS = [f"Ship number {number} left the harbour of Kiel." for number in range(600)]


@pytest.fixture(scope="session")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``sie serve`` with a model for every task."""
    with serving("--models", str(every_task.make(tmp_path_factory.mktemp("every")))) as url:
        yield url


def matrix(results: list[EncodeResult]) -> np.ndarray:
    return np.stack([result.dense for result in results if result.dense is not None])


def test_lists_streams_and_jobs_give_the_same_vectors_in_the_same_order(url: str) -> None:
    told: list[Progress] = []
    with SIEClient(url) as client:
        whole = matrix(client.encode(MODEL, TEXTS, progress=told.append, concurrency=4))
        streamed = matrix([*client.encode_stream(MODEL, iter(TEXTS), concurrency=2)])
        queued = matrix(client.submit("encode", MODEL, TEXTS).result())
        single = matrix([client.encode(MODEL, TEXTS[place]) for place in (0, 299, 599)])
    assert whole.shape == (600, 384)
    assert (told[-1].state, told[-1].done, told[-1].total) == ("done", 600, 600)
    for other in (streamed, queued):
        assert (whole * other).sum(axis=1).min() > 0.9998
    assert (whole[[0, 299, 599]] * single).sum(axis=1).min() > 0.9998
    neighbours = (whole[:-1] * whole[1:]).sum(axis=1)
    assert neighbours.max() < 0.9998, "the order can be told by the vectors"


def test_the_awaited_client_does_all_of_it_too(url: str) -> None:
    async def run() -> None:
        async with SIEAsyncClient(url) as client:
            whole = matrix(await client.encode(MODEL, TEXTS))
            streamed = matrix([result async for result in client.encode_stream(MODEL, TEXTS)])
            job = await client.submit("encode", MODEL, TEXTS[:10])
            queued = matrix(await job.result())
            assert await job.done()
            seen = await client.wait_for_capacity(MODEL)
        assert (whole * streamed).sum(axis=1).min() > 0.9998
        assert (whole[:10] * queued).sum(axis=1).min() > 0.9998
        assert seen.ready(model=MODEL)

    asyncio.run(run())


def test_a_job_of_a_warm_server_is_fetched_by_another_process(url: str, tmp_path: Path) -> None:
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).result().dense.shape)"
    with SIEClient(url) as client:
        client.encode(MODEL, "warm")
        job = client.submit("encode", MODEL, "hello")
        (tmp_path / "job").write_bytes(pickle.dumps(job))
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "job")], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "(384,)"
        assert len(client.job(job.id).result()) == 1
        assert job.status().state == "done"


def test_an_error_in_a_chunk_names_its_place_in_the_whole_list(url: str) -> None:
    texts = [*TEXTS[:500], "word " * 2000, *TEXTS[500:]]
    with SIEClient(url) as client, pytest.raises(InputTooLongError) as caught:
        client.encode(MODEL, texts, options={"overflow_policy": "error"})
    assert caught.value.field == "items[500].text"
    start, stop = caught.value.details["items"]
    assert start <= 500 < stop
    assert caught.value.request_id


def test_sixteen_threads_share_a_client(url: str) -> None:
    with SIEClient(url, max_connections=8) as client, ThreadPoolExecutor(16) as threads:
        wanted = matrix(client.encode(MODEL, TEXTS[:16]))
        made = [*threads.map(lambda place: client.encode(MODEL, TEXTS[place % 16]), range(160))]
        many = [*threads.map(lambda _: client.encode(MODEL, TEXTS[:300], concurrency=4), range(3))]
    for place, result in enumerate(made):
        assert result.dense is not None and result.dense @ wanted[place % 16] > 0.9998
    assert all((matrix(results)[:16] * wanted).sum(axis=1).min() > 0.9998 for results in many)


FORK = """
import os, sys
from sie_sdk import SIEClient
client = SIEClient(sys.argv[1])
texts = [f"text {number}" for number in range(300)]
before = client.encode(sys.argv[2], texts)
child = os.fork()
after = client.encode(sys.argv[2], texts)
assert all(a.dense @ b.dense > 0.9998 for a, b in zip(before, after, strict=True))
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_goes_on_with_the_client_of_its_parent(url: str) -> None:
    subprocess.run([sys.executable, "-c", FORK, url, MODEL], check=True, timeout=120)


def test_what_runs_is_told_once_and_watched(url: str) -> None:
    with SIEClient(url) as client:
        client.encode(MODEL, "warm")
        seen = client.wait_for_capacity(pool="default")
        assert seen.ready(pool="default")
        watched = client.watch(interval_s=0.05)
        first, second = next(watched), next(watched)
        assert second.timestamp > first.timestamp
        assert "cpu" in first.configured_gpu_types


@pytest.mark.parametrize("model", [every_task.RERANKER, every_task.TAGGER, every_task.RANDOM])
def test_a_model_of_any_operation_is_made_to_come_up(every: str, model: str) -> None:
    with SIEClient(every) as client:
        assert not client.get_capacity().ready(model=model)
        assert client.wait_for_capacity(model).ready(model=model)


def test_long_lists_are_scored_as_one_whatever_chunks_they_are_sent_in(every: str) -> None:
    items = [f"Paris has {number} bridges." if number % 3 else "Rome is old." for number in range(300)]
    with SIEClient(every) as client:
        ranked = client.score(every_task.RERANKER, "bridges of Paris?", items)
        alone = client.score(every_task.RERANKER, "bridges of Paris?", items[250:260])
    assert [entry.rank for entry in ranked.scores] == [*range(300)]
    assert sorted(entry.index for entry in ranked.scores) == [*range(300)]
    assert all(entry.item_id == f"item-{entry.index}" for entry in ranked.scores)
    by_index = {entry.index: entry.score for entry in ranked.scores}
    for entry in alone.scores:
        assert by_index[250 + entry.index] == pytest.approx(
            entry.score, abs=0.02
        )  # bfloat16, in batches of other sizes


def test_maxsim_here_is_the_servers(every: str) -> None:
    texts = ["a river", "two ships in a harbour", "the", "a lighthouse stands on a rock"]
    with SIEClient(every) as client:
        exact = client.encode(every_task.RANDOM, texts, output_types=["multivector"])
        rough = client.encode(every_task.RANDOM, texts, output_types=["multivector"], output_dtype="int8")
    scores = scoring.maxsim_batch(exact, exact)
    assert scores.argmax(axis=1).tolist()[1:2] == [1]
    np.testing.assert_allclose(scoring.maxsim_batch(exact, rough), scores, rtol=0.02, atol=0.05)


def test_a_server_at_rest_is_woken_by_waiting_for_a_model(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.up()
    told: list[Progress] = []
    try:
        with SIEClient(platform.url) as client:
            assert not client.get_capacity().ready()
            seen = client.wait_for_capacity(MODEL, progress=told.append)
            assert seen.ready(model=MODEL)
    finally:
        platform.down()
    assert told[0].state != "done" and told[-1].state == "done"
