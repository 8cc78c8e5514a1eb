"""What stays of deleted keys in buckets whose values do not end."""

from __future__ import annotations

import asyncio
import time

from sie_broker.jetstream import streams
from sie_broker.jetstream.bucket import NatsBucket
from sie_broker.jetstream.nats_broker import NatsBroker


async def test_nothing_stays_of_deleted_keys_after_a_while(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([])
    js, bucket = broker.nc.jetstream(), NatsBucket(broker.nc, streams.POOLS, marker_s=1)
    for key in ("deleted", "removed"):
        await bucket.put(key, b"1")
    await bucket.delete("deleted")
    assert await bucket.remove("removed", (await bucket.read("removed")).revision)
    end = time.monotonic() + 20
    while (await js.stream_info(f"KV_{streams.POOLS}")).state.messages:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await bucket.put("deleted", b"2")
    assert await bucket.entries() == {"deleted": b"2"}
    await broker.close()


async def test_lanes_and_pools_forget_their_deleted_keys(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([])
    for bucket, name in ((broker.lanes, streams.LANES), (broker.pools, streams.POOLS)):
        await bucket.delete("k")
        marker = await broker.nc.jetstream().get_last_msg(f"KV_{name}", f"$KV.{name}.k")
        assert marker.headers is not None and "Nats-TTL" in marker.headers
    await broker.close()
