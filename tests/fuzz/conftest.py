"""How many requests a run makes up: `SIE_FUZZ`, which `make fuzz` sets to a million."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, settings

import sie_ingress.pools
from sie_broker.memory import MemoryBroker
from tests.ingress.conftest import Desk, opened

EXAMPLES = int(os.environ.get("SIE_FUZZ", "10000"))


def share(of: float) -> settings:
    """The settings of one property: its share of all examples. A busy machine is not a failing test."""
    return settings(
        max_examples=max(50, int(EXAMPLES * of)),
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        derandomize="SIE_FUZZ" not in os.environ,
    )


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """An event loop that outlives the examples of a property."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def silent() -> Iterator[None]:
    """Workers that crash on purpose would fill the memory with their traces."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def desk(loop: asyncio.Runner, silent: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An ingress on the in-memory broker with a live worker, in ``loop``."""
    monkeypatch.setattr(sie_ingress.pools, "READY_S", 0.0)  # nobody makes queues here
    stack = AsyncExitStack()

    async def enter() -> Desk:
        made = await stack.enter_async_context(opened(MemoryBroker(), request_timeout_s=5.0))
        await stack.enter_async_context(made.worker())
        return made

    yield loop.run(enter())
    loop.run(stack.aclose())
