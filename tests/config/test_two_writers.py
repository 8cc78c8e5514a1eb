"""Two processes that write the same catalogue: one at a time does, and neither answers from what it last knew."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.writer import Writer
from sie_config.registry import Registry
from sie_sdk.errors import ConfigWriterBusyError
from tests.config.test_writer import CHANGED, OTHER, put
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC


@contextlib.asynccontextmanager
async def second_writer(broker: Broker, first: Writer) -> AsyncIterator[Writer]:
    """Another process's writer of the same catalogue, which stands by."""
    mirror = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC})
    await mirror.snapshot()
    writer = Writer(broker.config, mirror, first._provision)
    tasks = [asyncio.create_task(writer.run()), asyncio.create_task(mirror.follow())]
    try:
        yield writer
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_of_two_writers_the_next_writes_when_the_first_leaves(broker: Broker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with writing(broker, SPEC) as first:
            second = await stack.enter_async_context(second_writer(broker, first))
            assert await put(first, OTHER) is not None
            assert not second.leading
        await eventually(lambda: second.leading)
        event = await put(second, CHANGED)
        assert event is not None and event.epoch == 3


async def test_a_write_is_done_where_it_came_although_another_leads_and_is_asked_nothing(broker: Broker) -> None:
    async with writing(broker, SPEC) as first, second_writer(broker, first) as second:
        event = await put(second, OTHER)
        assert event is not None and event.epoch == 2
        await eventually(lambda: not first.leading)  # it hears of it at its next renewal
        assert second.leading
        again = await put(first, CHANGED)
        assert again is not None and again.epoch == 3


async def test_a_write_is_refused_while_another_process_writes(broker: Broker) -> None:
    async with writing(broker, SPEC) as first, second_writer(broker, first) as second:

        async def busy() -> None:
            for length in itertools.count(100):
                await put(first, msgspec.structs.replace(OTHER, max_sequence_length=length))
                await asyncio.sleep(0.1)

        task = asyncio.create_task(busy())
        with pytest.raises(ConfigWriterBusyError):
            await put(second, CHANGED)
        assert first.leading and not second.leading
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_writer_whose_lease_is_another_s_changes_nothing(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        entry = await broker.config.read(store.LEASE)
        # It slept for longer than its lease, and still believes in it.
        assert await broker.config.replace(store.LEASE, b"another/1", entry.revision) is not None
        before = {key: value for key, value in (await broker.config.entries()).items() if key != store.LEASE}
        with pytest.raises(ConfigWriterBusyError):
            await put(writer, OTHER)
        after = await broker.config.entries()
        del after[store.LEASE]
        assert after == before
        assert writer.state.specs() == [SPEC]
