"""The catalogue travels through the config bucket: written, mirrored, changed and repaired, on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_broker.records import Put
from sie_config.epochs import mirror as mirrors
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.writer import Writer
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import ModelNotFoundError
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other.model")
CHANGED = msgspec.structs.replace(SPEC, max_sequence_length=8)


@asynccontextmanager
async def following(broker: Broker) -> AsyncIterator[tuple[Mirror, Registry]]:
    registry = Registry()
    mirror = Mirror(broker.config, registry)
    task = asyncio.create_task(mirror.follow())
    yield mirror, registry
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def put(writer: Writer, *specs: ModelSpec, gone: tuple[str, ...] = ()) -> None:
    wanted: Mapping[str, ModelSpec | None] = {spec.id: spec for spec in specs} | dict.fromkeys(gone)
    await writer.write(lambda _: wanted, actor="a test", kind="put")


async def test_a_snapshot_holds_exactly_what_was_written(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        await put(writer, OTHER)
        registry = Registry()
        mirror = Mirror(broker.config, registry)
        await mirror.snapshot()
        assert registry.specs() == [SPEC, OTHER]
        assert mirror.state.mark == writer.state.mark
        assert mirror.state.epoch == 2


async def test_a_start_with_the_same_baseline_writes_nothing(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        assert writer.state.epoch == 1
    async with writing(broker, SPEC) as writer:
        assert writer.state.epoch == 1
    async with writing(broker, OTHER) as writer:
        assert writer.state.epoch == 2
        assert writer.state.specs() == [OTHER]


async def test_a_following_registry_sees_changes_and_removals(broker: Broker) -> None:
    async with writing(broker) as writer, following(broker) as (mirror, registry):
        told: list[int] = []
        mirror.changed = lambda: told.append(mirror.state.epoch)
        await put(writer, SPEC)
        await eventually(lambda: registry.specs() == [SPEC])
        await put(writer, CHANGED, OTHER)
        await eventually(lambda: registry.specs() == [CHANGED, OTHER])
        await put(writer, gone=(SPEC.id,))
        await eventually(lambda: registry.specs() == [OTHER])
        assert told[-3:] == [1, 2, 3]
        assert mirror.state.mark == writer.state.mark


async def test_what_is_told_and_refused_changes_no_reader(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer, following(broker) as (mirror, registry):
        await eventually(lambda: mirror.state.epoch == 1)
        # A writer that lost its lease: what it publishes is heard by every watch, and stored nowhere.
        event = store.Event(2, 0.0, "a zombie", "put", (store.Change(SPEC.id, None, None),))
        puts = [Put(store.event_key(2), store.encode(event)), Put("models.zombie", b"{}")]
        assert await broker.config.commit(puts, {store.LEASE: 99}) is None
        await put(writer, OTHER)
        await eventually(lambda: registry.specs() == [SPEC, OTHER])
        assert mirror.state.mark == writer.state.mark


async def test_an_entry_that_cannot_be_read_is_skipped_and_the_others_are_served(broker: Broker) -> None:
    async with writing(broker, SPEC):
        await broker.config.put(f"{store.MODELS}broken", b"{")
        registry = Registry()
        await Mirror(broker.config, registry).snapshot()
        assert registry.specs() == [SPEC]


async def test_who_waits_for_the_first_catalogue_goes_on_once_there_is_one(broker: Broker) -> None:
    registry = Registry()
    waiting = asyncio.create_task(Mirror(broker.config, registry).first())
    await asyncio.sleep(0)
    assert not waiting.done()
    async with writing(broker, SPEC):
        await waiting
    assert registry.specs() == [SPEC]


async def test_a_reader_that_missed_writes_reads_them_at_its_next_look(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        registry = Registry()
        mirror = Mirror(broker.config, registry)
        await mirror.snapshot()
        for length in range(1, 6):
            await put(writer, msgspec.structs.replace(OTHER, max_sequence_length=length))
        epochs: list[int] = []
        mirror.listeners.append(lambda event: epochs.append(event.epoch))
        await mirror.look()
        assert epochs == [2, 3, 4, 5, 6]
        assert mirror.state.mark == writer.state.mark


async def test_a_reader_whose_connection_is_back_looks_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "LOOK_S", 3600.0)
    async with writing(broker, SPEC) as writer, following(broker) as (mirror, registry):
        await eventually(lambda: mirror.state.epoch == 1)
        mirror.writing = 2  # the hint of it is passed over, as one that never came
        await put(writer, OTHER)
        assert mirror.state.epoch == 1
        mirror.look_soon()
        await eventually(lambda: registry.specs() == [SPEC, OTHER])


async def test_a_reader_reads_it_all_where_writes_are_no_longer_kept(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        registry = Registry()
        mirror = Mirror(broker.config, registry)
        await mirror.snapshot()
        await put(writer, OTHER)
        await put(writer, CHANGED)
        await broker.config.delete(store.event_key(2))
        await mirror.look()
        assert registry.specs() == [CHANGED, OTHER]
        assert mirror.state.mark == writer.state.mark


async def test_a_reader_serves_what_it_knew_while_the_bucket_is_lost_and_follows_the_next(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        await put(writer, OTHER)
        registry = Registry()
        mirror = Mirror(broker.config, registry)
        await mirror.snapshot()
    for key in await broker.config.entries():
        await broker.config.delete(key)
    await mirror.look()
    assert registry.specs() == [SPEC, OTHER]
    async with writing(broker, OTHER):
        await mirror.look()
        assert registry.specs() == [OTHER]
        assert mirror.state.epoch == 1


def test_the_organisation_may_be_left_out_where_that_is_unambiguous() -> None:
    twin = msgspec.structs.replace(SPEC, id="elsewhere/other.model")
    registry = Registry([SPEC, OTHER, twin])
    assert registry.resolve("Counting-Model") is SPEC
    with pytest.raises(ModelNotFoundError):
        registry.resolve("other.model")
