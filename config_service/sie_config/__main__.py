"""``python -m sie_config``: the config service. Publishes the catalogue, provisions its queues, answers reads."""

from __future__ import annotations

import logging

from sie_broker import process
from sie_broker.nats_broker import NatsBroker
from sie_config import catalog, store
from sie_config.app import app
from sie_config.registry import Registry, lane_of
from sie_config.settings import Settings
from sie_sdk import settings

log = logging.getLogger("sie.config")


async def main() -> None:
    """Start, serve, leave on SIGTERM."""
    setting = settings.read(Settings)
    registry = Registry(catalog.select(setting.models))
    broker = NatsBroker(setting.nats_url, name="config")
    stop = process.stop_signal()
    await process.connect(broker)
    # Queues before entries: a model is told to readers only when its work has a place to wait.
    await broker.provision((lane_of(spec), spec.id) for spec in registry.specs())
    await store.publish(broker.config, registry.specs())
    async with process.serving(app(registry), setting.host, process.port()):
        log.info("serving %d models", len(registry.specs()))
        await stop.wait()
    await broker.close()


if __name__ == "__main__":
    process.run("config", main)
