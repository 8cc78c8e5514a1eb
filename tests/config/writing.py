"""A writer for tests: leading, with a baseline of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sie_broker.contract import Broker
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.writer import Writer
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from tests.conftest import eventually


@asynccontextmanager
async def writing(broker: Broker, *baseline: ModelSpec, registry: Registry | None = None) -> AsyncIterator[Writer]:
    """A writer that leads and has seeded ``baseline``, while the context is open."""
    await broker.provision([])
    mirror = Mirror(broker.config, registry or Registry(), baseline={spec.id: spec for spec in baseline})
    await mirror.snapshot()
    writer = Writer(broker.config, mirror, _provision)
    async with under_way(mirror.follow(), writer.run()):
        await eventually(lambda: writer.leading)
        yield writer


@asynccontextmanager
async def under_way(*duties: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Duties that go on while the context is open."""
    tasks = [asyncio.create_task(duty) for duty in duties]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _provision(specs: Sequence[ModelSpec]) -> None:
    pass
