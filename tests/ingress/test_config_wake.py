"""The ingress wakes a config service that rests, for pools alone, and does not keep it up."""

from __future__ import annotations

import asyncio

from sie_broker import process
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool import Pool, encode, pool_key, queues_key
from sie_broker.pools.pool_table import PoolTable
from sie_ingress.config_wake import ConfigWake, waits
from tests.conftest import eventually

NOW = 1000.0
POOL = Pool("team", {"cpu": 1}, created_at=NOW, last_renewed=NOW, ttl_s=60.0)


def table(pool: Pool | None, queues: str | None) -> PoolTable:
    made = PoolTable(MemoryBroker().pools)
    made.apply(pool_key("team"), None if pool is None else encode(pool))
    made.apply(queues_key("team"), None if queues is None else queues.encode())
    return made


def test_a_pool_waits_for_the_config_service_without_its_queues_and_with_them_after_its_lease() -> None:
    assert waits(table(POOL, None), NOW) == {"team"}
    assert waits(table(POOL, "of another shape"), NOW) == {"team"}
    assert waits(table(POOL, POOL.shape), NOW) == set()
    assert waits(table(POOL, POOL.shape), NOW + 61) == {"team"}
    assert waits(table(POOL, None), NOW + 61) == set()
    assert waits(table(None, POOL.shape), NOW) == {"team"}


async def test_it_is_asked_until_nothing_waits_and_then_no_more() -> None:
    asked: list[str] = []
    pools = table(None, None)

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # ASGI
        asked.append(scope["path"])
        pools.apply(queues_key("team"), POOL.shape.encode())  # it starts, and does what is to be done
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with process.serving(app, "127.0.0.1", 0, drain_s=0) as port:
        wake = asyncio.create_task(ConfigWake(pools, f"http://127.0.0.1:{port}/", lambda: NOW).run())
        pools.apply(pool_key("team"), encode(POOL))
        await eventually(lambda: bool(asked))
        pools.apply(queues_key("team"), None)
        await eventually(lambda: len(asked) == 2)
        wake.cancel()
        await asyncio.gather(wake, return_exceptions=True)
    assert asked == ["/readyz", "/readyz"]
