"""A bundle without an engine, as a process: it pulls, answers and records, so that a fault's effects can be counted.

``python tests/faults/noop_bundle.py``, or as the bundle of a `sie up`. Heartbeats, demand sessions, drain and leases
are a real bundle's; only what is computed is not. Settings of a bundle it knows: ``SIE_NATS_URL``, ``SIE_POOL``,
``SIE_BUNDLE``, ``SIE_PROFILE``, ``SIE_MAX_IN_HAND``, ``SIE_DRAIN_S``, ``SIE_HOST``; ``PORT`` (unset: no HTTP). Its own:

    NOOP_RECORD   a file that gets one line ``start|done ID NAME`` as each work is begun and computed (appended, shared)
    NOOP_MODELS   ids separated by commas; unset: the catalogue of the config service
    NOOP_LOADED   ids of those that it says are loaded, separated by commas; unset: all
    NOOP_DELAY_S  how long each work takes
    NOOP_POISON   ids of works that kill the process as soon as they are begun, separated by commas
    NOOP_NAME     the worker's name in the record; unset: its process id

``encode`` answers each text with `vector`; ``echo`` answers with the data that came.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from sie_broker import process
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Lane, Work
from sie_bundle.door import Door
from sie_bundle.presence import Counts, Presence
from sie_bundle.settings import Settings
from sie_bundle.worker import Worker
from sie_config.epochs.mirror import Mirror
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Tasks
from sie_config.registry import Registry
from sie_sdk import replies, settings, wire
from sie_sdk.outputs import DenseOutput
from sie_sdk.types import Timing, Usage

DIED = 9
"""The exit status of a process that a poison killed."""


class Recorded(NamedTuple):
    """One line of the record."""

    event: str
    """``start`` or ``done``."""
    id: str
    worker: str


def recorded(path: Path) -> Iterator[Recorded]:
    """The record so far, oldest first; nothing while there is no file."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield Recorded(*line.split(" ", 2))


def vector(text: str) -> list[float]:
    """What ``encode`` answers for a text: its length and 20 bits of its checksum, both exact in float32."""
    return [float(len(text)), float(zlib.crc32(text.encode()) & 0xFFFFF)]


def spec(model: str, lane: Lane) -> ModelSpec:
    """A model this bundle serves."""
    return ModelSpec(
        id=model,
        family="noop",
        tasks=Tasks(dense=Dense(dim=2)),
        sources=(LocalSource(path="nowhere"),),
        max_sequence_length=512,
        revision="0",
        pool=lane.pool,
        bundle=lane.bundle,
        machine_profiles=(lane.profile,),
    )


class Own(msgspec.Struct, frozen=True):
    """The variables ``NOOP_*``."""

    record: str = ""
    models: str = ""
    loaded: str | None = None
    delay_s: float = 0.0
    poison: str = ""
    name: str = ""

    @classmethod
    def read(cls) -> Own:
        """From the environment."""
        known = {name: os.environ.get(f"NOOP_{name.upper()}") for name in cls.__struct_fields__}
        return msgspec.convert({name: value for name, value in known.items() if value is not None}, cls, strict=False)


class Noop:
    """The operations: they record, wait and answer, or die."""

    def __init__(self, own: Own) -> None:
        self.computed = 0
        self._delay_s = own.delay_s
        self._poison = frozenset(filter(None, own.poison.split(",")))
        self._name = own.name or str(os.getpid())
        self._record = os.open(own.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if own.record else None

    async def encode(self, work: Work) -> bytes:
        """Each text's `vector`."""
        await self._compute(work)
        request = wire.parse_encode(work.data, wire.MSGPACK)
        rows = np.array([vector(item.text or "") for item in request.items], "<f4")
        ids = [item.id for item in request.items]
        return replies.encode(work.model, ids, {"dense": DenseOutput(rows, 2, "float32")}, Timing(), Usage())

    async def echo(self, work: Work) -> bytes:
        """What came."""
        await self._compute(work)
        return work.data

    async def _compute(self, work: Work) -> None:
        self._write("start", work)
        if work.id in self._poison:
            os._exit(DIED)
        await asyncio.sleep(self._delay_s)
        self.computed += 1
        self._write("done", work)

    def _write(self, event: str, work: Work) -> None:
        if self._record is not None:  # one write each, so that lines of several processes do not mix
            os.write(self._record, f"{event} {work.id} {self._name}\n".encode())


async def main() -> None:
    """Start, pull, drain on SIGTERM."""
    own, setting = Own.read(), settings.read(Settings)
    stop = process.stop_signal()
    broker = NatsBroker(setting.nats_url, name=f"bundle-{os.getpid()}")
    await process.connect(broker)
    lane = Lane(pool=setting.pool, bundle=setting.bundle, profile=setting.profile)
    registry = Registry(spec(model, lane) for model in filter(None, own.models.split(",")))
    mirror = Mirror(broker.config, registry)
    if not own.models:
        await process.patiently(mirror.snapshot)
    noop = Noop(own)

    def loaded() -> tuple[str, ...]:
        if own.loaded is not None:
            return tuple(filter(None, own.loaded.split(",")))
        return tuple(spec.id for spec in registry.specs())

    def counts() -> Counts:
        busy_s, full_s = worker.busy.seconds, worker.full.seconds
        return Counts(loaded(), worker.in_hand, worker.completed, noop.computed, busy_s, full_s)

    presence = Presence(broker, lane, counts, setting.spawned_at)
    operations = {"encode": noop.encode, "echo": noop.echo}
    worker = Worker(broker, registry, lane, presence.worker, operations, loaded, setting.max_in_hand)
    door = Door(presence, registry, worker.run)
    background = [asyncio.create_task(presence.beat())]
    async with AsyncExitStack() as stack:
        if "PORT" in os.environ:
            await stack.enter_async_context(process.serving(door.app(), setting.host, process.port()))
        if not own.models:
            mirror.changed = worker.update_pulls
            background.append(asyncio.create_task(mirror.follow()))
        worker.start()
        process.collect_less()
        presence.became("ready")
        await stop.wait()
        presence.became("draining")
        door.draining.set()
        await worker.drain(setting.drain_s)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await presence.goodbye()
    await broker.close()


if __name__ == "__main__":
    process.run("noop", main)
