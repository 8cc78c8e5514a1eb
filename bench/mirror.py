"""One mirror of the catalogue, as a bundle has one: prints each epoch and when it was in the registry."""

from __future__ import annotations

import asyncio
import os
import time

import uvloop

from sie_broker.jetstream.nats_broker import NatsBroker
from sie_config.epochs.mirror import Mirror
from sie_config.registry import Registry


async def main() -> None:
    """Follow until killed."""
    broker = NatsBroker(os.environ["SIE_NATS_URL"], name="mirror")
    await broker.connect()
    mirror = Mirror(broker.config, Registry())
    await mirror.snapshot()
    mirror.listeners.append(lambda event: print(event.epoch, time.time(), flush=True))
    print(mirror.state.epoch, time.time(), flush=True)
    await asyncio.gather(mirror.follow())


if __name__ == "__main__":
    uvloop.run(main())
