"""``python -m sie_bundle``: a bundle function's process."""

from __future__ import annotations

import socket
import time
import uuid

from sie_broker import process
from sie_broker.duties import Duties
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.settings import Settings
from sie_config.epochs.mirror import Mirror
from sie_config.registry import Registry
from sie_sdk import settings


async def main() -> None:
    """Start, pull, drain on SIGTERM."""
    warming, imported = Warming(), time.time()
    setting = settings.read(Settings)
    stop = process.stop_signal()
    duties = Duties(stop)
    name = f"bundle-{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    broker = NatsBroker(setting.nats_url, name, stop=stop)
    await process.connect(broker)
    connected = time.time()
    registry = Registry()
    mirror = Mirror(broker.config, registry)
    broker.on_back.append(mirror.look_soon)
    # Not before: an event that is sent straight to this bundle would be told that its model does not exist.
    if not await process.unless(stop, mirror.first()):
        await broker.close()
        return
    bundle = Bundle(broker, registry, setting, stop)
    bundle.presence.milestone("imports", imported)
    bundle.presence.milestone("connected", connected)
    mirror.changed = bundle.catalogue_changed
    async with process.serving(bundle.door.app(), setting.host, process.port()):
        duties.begin(mirror.follow())
        try:
            if await process.unless(stop, bundle.start(warming)):
                await stop.wait()
        except Exception as error:
            await bundle.cannot_start(error)
            await duties.end()
            await broker.close()
            raise
        await duties.end()
        await bundle.drain()
    await broker.close()
    duties.check()


if __name__ == "__main__":
    process.run("bundle", main)
