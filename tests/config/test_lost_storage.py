"""What stood in NATS is gone while the config service runs: it makes all of it anew, by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sie_broker.contract import Broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.lease import Lease
from sie_broker.pools.pool_table import PoolTable
from sie_config import groundwork as grounds
from sie_config.deployment import placement
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.writer import Writer
from sie_config.groundwork import Groundwork
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry
from sie_sdk.errors import ConfigWriterBusyError
from tests.config.test_deployment import CPU, FREE, work
from tests.config.test_writer import CHANGED, OTHER, as_stored, put
from tests.config.writing import under_way, writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC


@asynccontextmanager
async def keeping(broker: Broker) -> AsyncIterator[Writer]:
    """The config service but for its HTTP: it leads, and has seeded one model."""
    await broker.provision([])
    registry = Registry(deployment=CPU)
    mirror = Mirror(broker.config, registry, baseline={FREE.id: FREE})
    await mirror.snapshot()
    ground = Groundwork(broker, registry, PoolQueues(broker, registry, PoolTable(broker.pools)))
    mirror.resets.append(ground.forget)
    lease = Lease(broker.config, store.LEASE, ttl_s=2, renew_s=0.3, margin_s=0.5)
    writer = Writer(broker.config, mirror, ground.lay, lease=lease)
    async with under_way(mirror.follow(), writer.run(), ground.keep(lambda: writer.leading)):
        await eventually(lambda: writer.leading)
        yield writer


async def test_streams_that_nats_lost_are_made_anew_and_then_the_catalogue(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grounds, "LOST_S", 0.1)
    broker = NatsBroker(nats_url, name="config")
    await broker.connect()
    async with keeping(broker) as writer:
        js = broker.nc.jetstream()
        for stream in await js.streams_info():
            await js.delete_stream(str(stream.config.name))
        await eventually(lambda: not writer.leading)
        await eventually(lambda: writer.leading)
        assert await put(writer, OTHER) is not None
        assert (await as_stored(broker.config)).state.specs() == sorted([FREE, OTHER], key=lambda spec: spec.id)
        assert await broker.config.get(placement.KEY) is not None
        await broker.submit(work(FREE.id, "cpu"))
    await broker.close()


async def test_whoever_does_not_lead_leaves_what_is_there_as_it_is(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = NatsBroker(nats_url, name="config")
    await broker.connect()
    async with keeping(broker):
        await broker.nc.jetstream().delete_stream("KV_sie_jobs")
        ground = Groundwork(broker, Registry(), PoolQueues(broker, Registry(), PoolTable(broker.pools)))
        await ground._restore()
        names = {str(stream.config.name) for stream in await broker.nc.jetstream().streams_info()}
        assert "KV_sie_config" in names and "KV_sie_jobs" not in names
    await broker.close()


async def test_a_leader_whose_bucket_was_emptied_begins_anew_before_it_takes_a_write(broker: Broker) -> None:
    async with writing(broker, SPEC, registry=Registry(deployment=CPU)) as writer:
        await put(writer, OTHER)
        for key in await broker.config.entries():
            await broker.config.delete(key)
        # A write that comes first is refused, or waits for the baseline: nothing is written where that is missing.
        for _ in range(20):
            try:
                await put(writer, CHANGED)
                break
            except ConfigWriterBusyError:
                await eventually(lambda: writer.leading)
        there = (await as_stored(broker.config)).state
        assert there.specs() == [CHANGED]
        assert [each.kind for each in await writer.history()] == ["put", "seed"]


async def test_a_leader_whose_bucket_was_emptied_has_its_baseline_back_without_a_write(broker: Broker) -> None:
    async with writing(broker, SPEC, OTHER, registry=Registry(deployment=CPU)) as writer:
        await put(writer, CHANGED)
        for key in await broker.config.entries():
            await broker.config.delete(key)
        await writer._mirror.look()
        assert not writer.leading
        await eventually(lambda: writer.leading)
        assert (await as_stored(broker.config)).state.specs() == [SPEC, OTHER]
