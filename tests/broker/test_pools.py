"""The pools' records and the mirror of their bucket, on both brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.pools import pool as pools
from sie_broker.pools import pool_table
from sie_broker.pools.pool import Assignment, Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Entry, Lane
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import eventually

POOL = Pool("team-a", {"cpu": 2, "l4": 1}, created_at=100.0, last_renewed=100.0, ttl_s=60.0, gpu_caps={"cpu": 3})


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([])
    return broker


@asynccontextmanager
async def following(broker: Broker) -> AsyncIterator[PoolTable]:
    table = PoolTable(broker.pools)
    task = asyncio.create_task(table.follow())
    try:
        yield table
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_pool_lives_until_its_lease_ends_or_it_is_deleted() -> None:
    assert POOL.living(159.9)
    assert not POOL.living(160.0)
    renewed = msgspec.structs.replace(POOL, last_renewed=150.0)
    assert renewed.living(209.0)
    assert not msgspec.structs.replace(renewed, deleted=True).living(151.0)


def test_a_pool_has_a_lane_for_each_profile_and_at_most_what_its_caps_allow() -> None:
    assert POOL.lanes() == [Lane("team-a", "default", "cpu"), Lane("team-a", "default", "l4")]
    assert [POOL.most(profile) for profile in ("cpu", "l4", "a100")] == [3, 1, 0]


def test_queues_for_another_bundle_or_profile_or_an_older_pool_of_that_name_are_not_its_queues() -> None:
    table = PoolTable(None)  # type: ignore[arg-type]  # only looked at
    table.queues["team-a"] = POOL.shape
    renewed = msgspec.structs.replace(POOL, last_renewed=140.0)
    assert table.ready(POOL) and table.ready(renewed)
    for changed in ({"created_at": 101.0}, {"bundle": "other"}, {"gpus": {"cpu": 1}}):
        assert not table.ready(msgspec.structs.replace(POOL, **changed))


async def test_every_table_hears_of_what_one_writes(ready: Broker) -> None:
    async with following(ready) as mine, following(ready) as yours:
        await mine.change("team-a", lambda _: POOL)
        assert mine.pools == {"team-a": POOL}
        await mine.note_queues("team-a", POOL.shape)
        await mine.assign("host.name-1", Assignment("team-a", ("org/m",)))
        await eventually(lambda: yours.assigned == {"host.name-1": Assignment("team-a", ("org/m",))})
        assert yours.pools == {"team-a": POOL} and yours.ready(POOL)
        await mine.assign("host.name-1", None)
        await mine.note_queues("team-a", None)
        await mine.change("team-a", lambda _: None)
        await eventually(lambda: not yours.pools)
        assert not yours.assigned and not yours.queues


async def test_what_was_written_before_is_read_at_the_start(ready: Broker) -> None:
    await PoolTable(ready.pools).change("team-a", lambda _: POOL)
    async with following(ready) as table:
        await eventually(lambda: table.pools == {"team-a": POOL})


async def test_a_pool_nobody_told_of_yet_can_be_looked_up(ready: Broker) -> None:
    table = PoolTable(ready.pools)
    assert await table.look_up("team-a") is None
    await PoolTable(ready.pools).change("team-a", lambda _: POOL)
    assert await table.look_up("team-a") == POOL


async def test_a_change_that_others_get_in_the_way_of_is_decided_anew(ready: Broker) -> None:
    mine, yours = PoolTable(ready.pools), PoolTable(ready.pools)
    await mine.change("team-a", lambda _: POOL)

    async def lengthen(table: PoolTable) -> None:
        for _ in range(10):
            await table.change("team-a", lambda pool: pool and msgspec.structs.replace(pool, ttl_s=pool.ttl_s + 1))

    await asyncio.gather(lengthen(mine), lengthen(yours))
    kept = await PoolTable(ready.pools).look_up("team-a")
    assert kept is not None and kept.ttl_s == 80.0


async def test_a_pool_that_is_renewed_while_it_is_to_be_removed_lives(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, read = msgspec.structs.replace(POOL, last_renewed=150.0), ready.pools.read

    async def overtaken(key: str) -> Entry:
        entry = await read(key)
        monkeypatch.setattr(ready.pools, "read", read)
        await ready.pools.put(key, pools.encode(renewed))
        return entry

    table = PoolTable(ready.pools)
    await table.change("team-a", lambda _: POOL)
    monkeypatch.setattr(ready.pools, "read", overtaken)
    assert await table.change("team-a", lambda pool: None if pool == POOL else pool) == renewed
    assert await PoolTable(ready.pools).look_up("team-a") == renewed


async def test_what_is_told_while_the_whole_is_read_is_newer_than_it(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, returned = ready.pools.entries, asyncio.Event()

    async def overtaken() -> dict[str, bytes]:
        older = await entries()
        await PoolTable(ready.pools).change("team-a", lambda _: POOL)
        await eventually(lambda: table.pools == {"team-a": POOL})
        returned.set()
        return older

    monkeypatch.setattr(ready.pools, "entries", overtaken)
    async with following(ready) as table:
        await returned.wait()
        assert table.pools == {"team-a": POOL}


async def test_a_change_that_was_refused_is_not_believed_for_long(ready: Broker) -> None:
    async with following(ready) as table:
        await table.change("team-a", lambda _: POOL)
        wrong = pools.encode(msgspec.structs.replace(POOL, ttl_s=1.0))
        assert await ready.pools.replace(pools.pool_key("team-a"), wrong, revision=12345) is None
        await eventually(lambda: table.pools == {"team-a": POOL})


async def test_an_entry_that_cannot_be_read_is_left_out(ready: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await ready.pools.put(pools.pool_key("broken"), b"{")
    await PoolTable(ready.pools).change("team-a", lambda _: POOL)
    with caplog.at_level(logging.WARNING):
        async with following(ready) as table:
            await eventually(lambda: table.pools == {"team-a": POOL})
    assert "broken" in caplog.text


async def test_a_table_whose_bucket_does_not_answer_keeps_what_it_knows_and_asks_again(
    ready: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_table, "SOON_S", 0.01)
    answers, asked = ready.pools.entries, asyncio.Event()

    async def silent() -> dict[str, bytes]:
        asked.set()
        raise QueueUnavailableError("no answer")

    monkeypatch.setattr(ready.pools, "entries", silent)
    async with following(ready) as table:
        await asked.wait()
        table.pools["known"] = POOL
        await PoolTable(ready.pools).change("team-a", lambda _: POOL)
        await eventually(lambda: table.pools == {"known": POOL, "team-a": POOL})
        monkeypatch.setattr(ready.pools, "entries", answers)
        await eventually(lambda: table.pools == {"team-a": POOL})
