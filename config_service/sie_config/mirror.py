"""The mirror: keeps a process's `Registry` equal to the config bucket.

A snapshot first, then each change as it is told, and the whole again every minute: a change may be missed while a
connection is broken. A spec that cannot be read is skipped with a warning; the others stay served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sie_broker.contract import Bucket
from sie_broker.jetstream.connection import cancelled
from sie_broker.subjects import name_of
from sie_config import store
from sie_config.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.config.mirror")

REREAD_S = 60.0


async def snapshot(bucket: Bucket, registry: Registry) -> None:
    """Read the whole bucket into the registry.

    Raises:
        QueueUnavailableError: the broker does not answer, or no catalogue was ever written.
    """
    entries = await bucket.entries()
    registry.replace(spec for name, value in entries.items() if (spec := _read(name, value)) is not None)


async def follow(bucket: Bucket, registry: Registry, changed: Callable[[], None] = lambda: None) -> None:
    """Keep ``registry`` up to date until cancelled; ``changed()`` is called after each change."""
    told: dict[str, bytes | None] = {}

    def on_change(name: str, value: bytes | None) -> None:
        told[name] = value
        _apply(registry, name, value)
        changed()

    async with bucket.watch(on_change):
        while not cancelled():
            told.clear()
            try:
                await snapshot(bucket, registry)
            except QueueUnavailableError as error:
                log.warning("config was not read again, the last known catalogue stays: %s", error)
            for name, value in told.items():  # told while the snapshot was read, and perhaps newer than it
                _apply(registry, name, value)
            changed()
            await asyncio.sleep(REREAD_S)


def _apply(registry: Registry, name: str, value: bytes | None) -> None:
    if not name.startswith(store.PREFIX):
        return
    if value is None:
        registry.remove(name_of(name.removeprefix(store.PREFIX)))
    elif (spec := _read(name, value)) is not None:
        registry.put(spec)


def _read(name: str, value: bytes) -> ModelSpec | None:
    try:
        return store.decode(value) if name.startswith(store.PREFIX) else None
    except msgspec.DecodeError as error:
        log.warning("skipped %s: %s", name, error)
        return None
