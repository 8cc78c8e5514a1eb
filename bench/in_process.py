"""Ingress, in-memory broker and a worker that computes nothing, in one process: what NATS is compared with."""

from __future__ import annotations

import asyncio

from tests.faults.noop_bundle import Noop, Own

from sie_broker import process
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_bundle.presence import Counts, Presence
from sie_bundle.worker import Worker
from sie_config import catalog
from sie_config.registry import Registry
from sie_ingress.app import app
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_ingress.readiness import Readiness
from sie_ingress.settings import Settings

LANE = Lane(pool="default", bundle="default", profile="cpu")


async def main() -> None:
    """Serve on ``PORT`` until SIGTERM."""
    stop = process.stop_signal()
    broker, registry, readiness = MemoryBroker(), Registry(catalog.select("")), Readiness()
    lanes = Lanes(broker, 5.0)
    worker = Worker(broker, registry, LANE, "noop", {"encode": Noop(Own()).encode}, list, 256)
    presence = Presence(broker, LANE, lambda: Counts(in_flight=worker.in_hand, completed=worker.completed))
    worker.start()
    pools = Pools(registry, lanes, PoolTable(broker.pools))
    background = [asyncio.create_task(lanes.follow()), asyncio.create_task(presence.beat())]
    presence.became("ready")
    async with process.serving(
        app(broker, registry, lanes, pools, Settings(), readiness), "127.0.0.1", process.port(), drain_s=0
    ):
        process.collect_less()
        readiness.begin()
        await stop.wait()
    for task in background:
        task.cancel()
    await worker.drain(0)


if __name__ == "__main__":
    process.run("in-process", main)
