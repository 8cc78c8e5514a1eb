"""Compare-and-swap in a bucket, and values that end: the same in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import time

import pytest

from sie_broker.contract import Broker, Bucket
from sie_broker.records import Entry, Put
from tests.conftest import eventually


@pytest.fixture
async def bucket(broker: Broker) -> Bucket:
    await broker.provision([])
    return broker.leases


async def test_what_is_not_there_is_written_once_however_many_try(bucket: Bucket) -> None:
    assert await bucket.read("k") == Entry(None, 0)
    written = await asyncio.gather(*(bucket.replace("k", bytes([n]), 0) for n in range(8)))
    (winner,) = [n for n, revision in enumerate(written) if revision is not None]
    assert await bucket.read("k") == Entry(bytes([winner]), written[winner] or 0)


async def test_a_write_counts_only_over_the_revision_it_names(bucket: Bucket) -> None:
    first = await bucket.replace("k", b"1", 0)
    assert first is not None
    second = await bucket.replace("k", b"2", first)
    assert second is not None and second > first
    assert await bucket.replace("k", b"late", first) is None
    assert await bucket.replace("k", b"late", 0) is None
    assert await bucket.get("k") == b"2"
    await bucket.put("k", b"3")
    assert await bucket.replace("k", b"late", second) is None
    assert (await bucket.read("k")).value == b"3"


async def test_a_value_is_removed_only_at_the_revision_that_is_named(bucket: Bucket) -> None:
    first = await bucket.replace("k", b"1", 0)
    assert first is not None
    second = await bucket.replace("k", b"2", first)
    assert second is not None
    assert not await bucket.remove("k", first)
    assert await bucket.get("k") == b"2"
    assert await bucket.remove("k", second)
    assert await bucket.get("k") is None
    assert await bucket.entries() == {}


async def test_a_key_that_was_deleted_is_written_over_the_revision_that_read_tells(bucket: Bucket) -> None:
    await bucket.put("k", b"1")
    await bucket.delete("k")
    gone = await bucket.read("k")
    assert gone.value is None
    assert await bucket.replace("k", b"2", gone.revision) is not None
    assert await bucket.get("k") == b"2"


async def test_a_value_with_a_time_to_live_ends_and_its_last_revision_with_it(bucket: Bucket) -> None:
    written = time.monotonic()
    revision = await bucket.replace("k", b"1", 0, ttl_s=1)
    assert revision is not None
    while await bucket.get("k") is not None:
        assert time.monotonic() - written < 10
        await asyncio.sleep(0.005)
    assert time.monotonic() - written >= 0.95
    assert await bucket.read("k") == Entry(None, 0)
    assert await bucket.replace("k", b"stale", revision, ttl_s=1) is None
    again = await bucket.replace("k", b"2", 0)
    assert again is not None and again > revision


async def test_each_write_starts_the_time_to_live_anew(bucket: Bucket) -> None:
    began = renewed = time.monotonic()
    revision = 0
    while time.monotonic() - began < 2.0:
        asked = time.monotonic()
        if (written := await bucket.replace("k", b"1", revision, ttl_s=1)) is None:
            assert time.monotonic() - renewed > 0.95, "renewed in time, and yet gone"
            began, written = time.monotonic(), 0  # the machine stood still: once more
        renewed, revision = asked, written
        await asyncio.sleep(0.3)
    lasting = await bucket.replace("k", b"2", (await bucket.read("k")).revision)
    assert lasting is not None
    await asyncio.sleep(1.2)  # the time to live of the write before has passed; this one has none
    assert await bucket.read("k") == Entry(b"2", lasting)


async def test_a_commit_writes_all_or_nothing(broker: Broker) -> None:
    await broker.provision([])
    bucket = broker.config
    token = await bucket.replace("lease", b"me", 0)
    assert token is not None
    puts = [Put("a", b"1"), Put("epoch", b"1", revision=0), Put("outbox.1", b"e")]
    written = await bucket.commit(puts, {"lease": token})
    assert written is not None and written == sorted(written)
    assert await bucket.entries() == {"lease": b"me", "a": b"1", "epoch": b"1", "outbox.1": b"e"}
    assert (await bucket.read("epoch")).revision == written[1]

    before = await bucket.entries()
    stale = [Put("a", b"2"), Put("epoch", b"2", revision=0), Put("outbox.2", b"e")]
    assert await bucket.commit(stale, {"lease": token}) is None
    late = [Put("a", b"2"), Put("epoch", b"2", revision=written[1]), Put("outbox.2", b"e")]
    assert await bucket.replace("lease", b"another", token) is not None
    assert await bucket.commit(late, {"lease": token}) is None
    assert await bucket.entries() == before | {"lease": b"another"}


async def test_a_commit_deletes_and_its_values_may_end(broker: Broker) -> None:
    await broker.provision([])
    bucket = broker.config
    assert await bucket.commit([Put("a", b"1"), Put("b", b"1")], {}) is not None
    written = await bucket.commit([Put("a", None), Put("c", b"1", ttl_s=1)], {})
    assert written is not None
    assert await bucket.get("a") is None and await bucket.get("b") == b"1"
    deadline = time.monotonic() + 10
    while await bucket.get("c") is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    assert await bucket.commit([Put("a", b"2", revision=(await bucket.read("a")).revision)], {}) is not None
    assert await bucket.entries() == {"a": b"2", "b": b"1"}


async def test_a_commit_takes_a_thousand_keys(broker: Broker) -> None:
    await broker.provision([])
    written = await broker.config.commit([Put(f"k.{n}", b"v") for n in range(1000)], {})
    assert written is not None and len(written) == 1000
    assert len(await broker.config.entries()) == 1000


KEYS = ["result", "result.a", "result.a.b", "result.ab", "resulta", "job.result.a", "Result.a"]


@pytest.mark.parametrize(
    ("key", "heard"),
    [
        ("result.a", ["result.a"]),
        ("result.>", ["result.a", "result.a.b", "result.ab"]),
        ("result.a.>", ["result.a.b"]),
        (">", KEYS),
    ],
)
async def test_a_watch_hears_of_its_key_or_of_all_below_a_part_and_of_no_other(
    bucket: Bucket, key: str, heard: list[str]
) -> None:
    seen: list[tuple[str, bytes | None]] = []
    async with bucket.watch(lambda *change: seen.append(change), key):
        for each in KEYS:
            await bucket.put(each, b"1")
        for each in KEYS:
            await bucket.delete(each)
        await eventually(lambda: len(seen) >= 2 * len(heard))
    assert seen == [*((each, b"1") for each in heard), *((each, None) for each in heard)]


async def test_each_who_watches_hears_and_one_that_leaves_takes_no_other_along(bucket: Bucket) -> None:
    stays: list[str] = []
    leaves: list[str] = []
    for key in ("k.a", "k.>"):
        async with bucket.watch(lambda key, _: stays.append(key), key):
            async with bucket.watch(lambda key, _: leaves.append(key), key):
                await bucket.put("k.a", b"1")
                await eventually(lambda: (stays, leaves) == (["k.a"], ["k.a"]))
            await bucket.put("k.a", b"2")
            await eventually(lambda: stays == ["k.a", "k.a"])
            assert leaves == ["k.a"]
        await bucket.put("k.a", b"3")
        async with bucket.watch(lambda key, _: stays.append(key), key):
            await bucket.put("k.a", b"4")
            await eventually(lambda: stays == ["k.a"] * 3)
        stays.clear()
        leaves.clear()
