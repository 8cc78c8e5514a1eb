"""Two processes that write the same catalogue: one at a time does, and neither answers from what it last knew."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import cast

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.lease import Lease
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.state import State
from sie_config.epochs.store import Event, Recorded
from sie_config.epochs.writer import Request, Writer
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import ConfigWriterBusyError, PreconditionFailedError
from tests.config.test_writer import CHANGED, OTHER, Held, put
from tests.config.writing import under_way, writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC


@contextlib.asynccontextmanager
async def second_writer(broker: Broker, first: Writer) -> AsyncIterator[Writer]:
    """Another process's writer of the same catalogue, which stands by."""
    mirror = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC})
    await mirror.snapshot()
    writer = Writer(broker.config, mirror, first._provision)
    async with under_way(writer.run(), mirror.follow()):
        yield writer


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


async def test_a_key_that_comes_to_two_processes_is_obeyed_once(broker: Broker) -> None:
    request = Request("key", "digest", lambda event: (200, f"epoch {event and event.epoch}".encode()))

    async def ask(writer: Writer) -> Event | Recorded | None:
        return await writer.write(lambda _: {CHANGED.id: CHANGED}, actor="", kind="put", request=request)

    async with contextlib.AsyncExitStack() as stack:
        async with writing(broker, SPEC) as first:
            second = await stack.enter_async_context(second_writer(broker, first))
            late = asyncio.create_task(ask(second))  # does not lead yet
            await ask(first)
            await put(first, SPEC)
        assert await late == Recorded("digest", 200, b"epoch 2", 2)
        assert second.leading and second.state.specs() == [SPEC]


@pytest.mark.parametrize("kept", [CHANGED, SPEC], ids=["a change", "no change"])
async def test_a_key_that_is_obeyed_elsewhere_at_the_same_moment_is_obeyed_once(
    broker: Broker, kept: ModelSpec
) -> None:
    async with writing(broker, SPEC) as writer:
        elsewhere = Recorded("digest", 200, b"elsewhere", 1)
        request = Request("key", "digest", lambda _: (200, b"here"))
        edits: list[int] = []

        async def obey(specs: object = None) -> None:
            await broker.config.put(request.at, store.encode(elsewhere))

        def edit(state: State) -> Mapping[str, ModelSpec]:
            edits.append(state.epoch)
            return {kept.id: kept}

        writer._provision = obey
        replace = writer._bucket.replace

        async def late(key: str, value: bytes, revision: int, ttl_s: int | None = None) -> int | None:
            if key == request.at:
                await obey()
            return await replace(key, value, revision, ttl_s)

        writer._bucket.replace = late  # type: ignore[method-assign]
        assert await writer.write(edit, actor="", kind="put", request=request) == elsewhere
        assert (edits, writer.state.specs()) == ([1], [SPEC])


async def test_a_writer_that_was_overtaken_answers_nothing_from_what_it_last_knew(broker: Broker) -> None:
    def refuse(state: State) -> Mapping[str, ModelSpec]:
        if state.specs() == [SPEC]:
            raise PreconditionFailedError("It is as it was.")
        return {SPEC.id: SPEC}

    await broker.provision([])
    mirror = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC})  # which is told nothing, as if it slept
    first = Writer(broker.config, mirror, provision, lease=cast(Lease, Held(broker.config)))
    leading = asyncio.create_task(first.run())
    await eventually(lambda: first.leading)
    async with second_writer(broker, first) as second:
        await put(second, CHANGED)
        for edit in (refuse, lambda _: {SPEC.id: SPEC}):
            with pytest.raises(ConfigWriterBusyError):
                await first.write(edit, actor="", kind="put")
        assert first.state.specs() == second.state.specs() == [CHANGED]
        assert await put(first, CHANGED) is None
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def provision(specs: object) -> None:
    """No queues are needed here."""
