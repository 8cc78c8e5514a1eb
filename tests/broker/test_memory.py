"""The in-memory broker keeps what has ended no longer than it must: `sie serve` runs for weeks."""

from __future__ import annotations

import time

import pytest

from sie_broker import jobs
from sie_broker.memory import SWEEP_AT, MemoryBroker, MemoryBucket
from sie_broker.records import Lane, Reply, Work
from sie_sdk.errors import QueueFullError


async def test_a_bucket_lets_go_of_values_that_have_ended_though_nobody_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("sie_broker.memory.time.monotonic", lambda: now)
    bucket = MemoryBucket(ttl_s=10)
    for number in range(20 * SWEEP_AT):
        now += 0.1  # a hundred are alive at any time
        await bucket.put(str(number), b"value")
        assert len(bucket._values) <= 2 * SWEEP_AT
    assert len(await bucket.entries()) == 100


async def test_results_that_do_not_fit_are_refused_until_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("sie_broker.memory.time.monotonic", lambda: now)
    bucket = MemoryBucket(ttl_s=10, max_bytes=1000)
    for _ in range(3):  # the same one, each in the place of the one before
        await jobs.keep(bucket, Reply("first", bytes(700)))
    with pytest.raises(QueueFullError) as refused:
        await jobs.keep(bucket, Reply("more", bytes(700)))
    assert refused.value.retry_after
    await bucket.delete("result.first")
    await jobs.keep(bucket, Reply("second", bytes(700)))
    now = 10.0
    await jobs.keep(bucket, Reply("third", bytes(700)))
    assert await jobs.result(bucket, "third") is not None


async def test_work_that_does_not_fit_is_refused_until_other_work_is_done() -> None:
    broker = MemoryBroker(max_bytes=1000)

    def work(id: str) -> Work:
        return Work(id, "encode", Lane("default", "default", "cpu"), "m", bytes(700), time.time())

    first = await broker.submit(work("first"))
    with pytest.raises(QueueFullError):
        await broker.submit(work("second"))
    broker.settle(first.sequence)
    await broker.submit(work("second"))
