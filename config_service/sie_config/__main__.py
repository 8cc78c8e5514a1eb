"""``python -m sie_config``: the config service. Writes the catalogue, provisions its queues, answers who asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from sie_broker import process
from sie_broker.jetstream.connection import cancelled
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.pools.pool_table import PoolTable
from sie_config import catalog
from sie_config.app import app
from sie_config.mirror import Mirror
from sie_config.model_spec import ModelSpec
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lane_of
from sie_config.settings import Settings
from sie_config.writer import Writer
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError, QueueUnavailableError

log = logging.getLogger("sie.config")

REPAIR_S = 30.0


async def main() -> None:
    """Start, serve, leave on SIGTERM."""
    setting = settings.read(Settings)
    baseline = {spec.id: spec for spec in catalog.select(setting.models)}
    registry = Registry()
    broker = NatsBroker(setting.nats_url, name="config", limits=setting)
    stop = process.stop_signal()
    await process.connect(broker)
    queues = PoolQueues(broker, registry, PoolTable(broker.pools))
    await process.patiently(partial(broker.provision, []))  # a cluster elects its leaders first
    mirror = Mirror(broker.config, registry, baseline=baseline)
    await process.patiently(mirror.snapshot)
    writer = Writer(broker.config, mirror, partial(_provision, broker, registry, queues), setting.replica)
    async with process.serving(app(registry), setting.host, process.port()):
        keeping = [
            asyncio.create_task(mirror.follow()),
            asyncio.create_task(writer.run()),
            asyncio.create_task(_repair(broker, registry, queues, writer)),
            asyncio.create_task(queues.run()),
        ]
        await stop.wait()
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
    await broker.close()


async def _provision(broker: NatsBroker, registry: Registry, queues: PoolQueues, specs: Sequence[ModelSpec]) -> None:
    """Queues before entries: a model is told to readers only when its work has a place to wait."""
    every = [*registry.specs(), *specs]
    await broker.provision([*((lane_of(spec), spec.id) for spec in every), *queues.living()])
    await queues.note_homes(specs)


async def _repair(broker: NatsBroker, registry: Registry, queues: PoolQueues, writer: Writer) -> None:
    """Make the server match again every while: its storage may have been lost or changed by somebody else."""
    while not cancelled():
        await asyncio.sleep(REPAIR_S)
        try:
            if writer.leading:
                await _provision(broker, registry, queues, ())
        except (QueueUnavailableError, ConfigurationError) as error:
            log.warning("the queues were not looked over: %s", error)


if __name__ == "__main__":
    process.run("config", main)
