"""Checked by mypy, never run: what a type checker makes of the public methods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import assert_type

from sie_sdk import (
    AsyncJob,
    Capacity,
    EncodeResult,
    ExtractResult,
    Item,
    Job,
    JobStatus,
    ModelInfo,
    PoolInfo,
    ScoreResult,
    SIEAsyncClient,
    SIEClient,
    WorkerInfo,
)


def blocking(client: SIEClient) -> None:
    assert_type(client.encode("m", "text"), EncodeResult)
    assert_type(client.encode("m", Item(text="text")), EncodeResult)
    assert_type(client.encode("m", ["one", "two"]), list[EncodeResult])
    assert_type(client.encode("m", [Item(text="one")]), list[EncodeResult])
    assert_type(client.encode("m", ["one", Item(text="two")]), list[EncodeResult])
    assert_type(client.encode("m", ("one", "two")), list[EncodeResult])
    assert_type(client.score("m", "query", "text"), ScoreResult)
    assert_type(client.score("m", Item(text="query"), ["one", Item(text="two")], instruction="i"), ScoreResult)
    assert_type(client.extract("m", "text"), ExtractResult)
    assert_type(client.extract("m", ["one", "two"], labels=["person"], options={"threshold": 0.5}), list[ExtractResult])
    assert_type(client.submit("encode", "m", "text", output_dtype="int8"), Job[EncodeResult])
    assert_type(client.submit("encode", "m", ["one"]).result(), list[EncodeResult])
    assert_type(client.submit("score", "m", ["one"], query="query").result(deadline_s=5), ScoreResult)
    assert_type(client.submit("extract", "m", ["one"], labels=["person"]), Job[list[ExtractResult]])
    assert_type(client.job("id", "score").result(), ScoreResult)
    assert_type(client.job("id").status(), JobStatus)
    assert_type(client.encode("m", (text for text in ["one"]), concurrency=2), list[EncodeResult])
    assert_type([*client.encode_stream("m", iter(["one"]), is_query=False)], list[EncodeResult])
    assert_type([*client.extract_stream("m", ["one"], labels=["person"])], list[ExtractResult])
    assert_type(client.get_capacity(), Capacity)
    assert_type(client.wait_for_capacity("m", pool="p", deadline_s=5).ready(), list[WorkerInfo])
    assert_type([*client.watch(interval_s=0.1)], list[Capacity])
    assert_type(client.list_models(), list[ModelInfo])
    assert_type(client.get_model("m"), ModelInfo)
    assert_type(client.create_pool("p", {"cpu": 1}, minimum_worker_count=1), PoolInfo)
    assert_type(client.list_pools(), list[PoolInfo])
    assert_type(client.get_pool("p"), PoolInfo | None)
    assert_type(client.delete_pool("p"), bool)
    with client.pool("p", {"cpu": 1}, ttl_s=60) as lease:
        assert_type(lease.info(), PoolInfo | None)
        client.encode("m", "text", pool=lease.name)
    client.encode("m", "text", is_query=True, deadline_s=5, cancel=threading.Event(), progress=print)
    client.encode("m", "text", output_dtype="float16", output_types=["dense"], options={"profile": "p"})
    with SIEClient() as entered:
        assert_type(entered, SIEClient)


async def texts() -> AsyncIterator[str]:
    yield "one"


async def awaited(client: SIEAsyncClient) -> None:
    assert_type(await client.encode("m", "text"), EncodeResult)
    assert_type(await client.encode("m", Item(text="text"), wait_for_capacity=False), EncodeResult)
    assert_type(await client.encode("m", ["one", "two"]), list[EncodeResult])
    assert_type(await client.score("m", "query", ["one"]), ScoreResult)
    assert_type(await client.extract("m", "text"), ExtractResult)
    assert_type(await client.extract("m", ["one", "two"]), list[ExtractResult])
    job = await client.submit("encode", "m", ["one"])
    assert_type(job, AsyncJob[list[EncodeResult]])
    assert_type(await job.result(), list[EncodeResult])
    assert_type(await job.done(), bool)
    assert_type(client.job("id", "extract"), AsyncJob[list[ExtractResult]])
    assert_type([result async for result in client.encode_stream("m", texts())], list[EncodeResult])
    assert_type([result async for result in client.extract_stream("m", ["one"])], list[ExtractResult])
    assert_type(await client.wait_for_capacity("m"), Capacity)
    assert_type([seen async for seen in client.watch()], list[Capacity])
    assert_type(await client.list_models(), list[ModelInfo])
    assert_type(await client.get_model("m"), ModelInfo)
    assert_type(await client.create_pool("p", {"cpu": 1}), PoolInfo)
    assert_type(await client.renew_pool("p"), bool)
    async with client.pool("p", {"cpu": 1}) as lease:
        assert_type(await lease.info(), PoolInfo | None)
    assert_type(await asyncio.create_task(client.encode("m", "text")), EncodeResult)
    assert_type(await asyncio.gather(client.encode("m", "a"), client.get_model("m")), tuple[EncodeResult, ModelInfo])
    async with SIEAsyncClient() as entered:
        assert_type(entered, SIEAsyncClient)


# Each line below is an error, and an ignore that ignores nothing is one too.
def wrong(client: SIEClient) -> None:
    client.encode("m", 3)  # type: ignore[call-overload]
    client.encode("m", "text", is_qery=True)  # type: ignore[call-overload]
    client.encode("m", "text", output_dtype="int3")  # type: ignore[call-overload]
    client.score("m", ["query"], ["one"])  # type: ignore[arg-type]
    client.extract("m", "text", labels=[3])  # type: ignore[list-item]
    client.submit("score", "m", ["one"])  # type: ignore[call-overload]
    client.submit("decode", "m", ["one"])  # type: ignore[call-overload]
    client.encode_stream("m", ["text"], is_qery=True)  # type: ignore[call-arg]
    client.encode_stream("m", asyncio.Queue())  # type: ignore[arg-type]
    client.get_model(3)  # type: ignore[arg-type]
    client.create_pool("p", {"cpu": "one"})  # type: ignore[dict-item]
    client.pool("p", ttl="60")  # type: ignore[call-arg]
