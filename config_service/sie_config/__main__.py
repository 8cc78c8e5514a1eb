"""``python -m sie_config``: the config service. Publishes the catalogue, provisions its queues, answers reads."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from sie_broker import process
from sie_broker.jetstream.connection import cancelled
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.pools.pool_table import PoolTable
from sie_config import catalog, store
from sie_config.app import app
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lane_of
from sie_config.settings import Settings
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError, QueueUnavailableError

log = logging.getLogger("sie.config")

REPAIR_S = 30.0


async def main() -> None:
    """Start, serve, leave on SIGTERM."""
    setting = settings.read(Settings)
    registry = Registry(catalog.select(setting.models))
    broker = NatsBroker(setting.nats_url, name="config", limits=setting)
    stop = process.stop_signal()
    await process.connect(broker)
    queues = PoolQueues(broker, registry, PoolTable(broker.pools))
    await process.patiently(partial(_publish, broker, registry, queues))  # a cluster elects its leaders first
    async with process.serving(app(registry), setting.host, process.port()):
        log.info("serving %d models", len(registry.specs()))
        keeping = [asyncio.create_task(_repair(broker, registry, queues)), asyncio.create_task(queues.run())]
        await stop.wait()
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
    await broker.close()


async def _publish(broker: NatsBroker, registry: Registry, queues: PoolQueues) -> None:
    """Queues before entries: a model is told to readers only when its work has a place to wait."""
    await broker.provision([*((lane_of(spec), spec.id) for spec in registry.specs()), *queues.living()])
    await queues.note_homes()
    await store.publish(broker.config, registry.specs())


async def _repair(broker: NatsBroker, registry: Registry, queues: PoolQueues) -> None:
    """Make the server match again every while: its storage may have been lost or changed by somebody else."""
    while not cancelled():
        await asyncio.sleep(REPAIR_S)
        try:
            await _publish(broker, registry, queues)
        except (QueueUnavailableError, ConfigurationError) as error:
            log.warning("the catalogue was not published again: %s", error)


if __name__ == "__main__":
    process.run("config", main)
