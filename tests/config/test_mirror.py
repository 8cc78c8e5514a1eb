"""The catalogue travels through the config bucket: published once, mirrored, changed and repaired, on both brokers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_config import mirror, store
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import ModelNotFoundError
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other.model")


@pytest.fixture
async def ready(broker: Broker) -> Broker:
    await broker.provision([(lane_of(SPEC), SPEC.id)])
    return broker


async def test_a_snapshot_holds_exactly_what_was_published(ready: Broker) -> None:
    assert await store.publish(ready.config, [SPEC, OTHER]) == 2
    registry = Registry()
    await mirror.snapshot(ready.config, registry)
    assert registry.specs() == [SPEC, OTHER]


async def test_publishing_the_same_again_writes_nothing(ready: Broker) -> None:
    await store.publish(ready.config, [SPEC])
    assert await store.publish(ready.config, [SPEC]) == 0
    assert await store.publish(ready.config, [OTHER]) == 2
    assert list(await ready.config.entries()) == [store.key(OTHER.id)]


async def test_a_following_registry_sees_changes_and_removals(ready: Broker) -> None:
    await store.publish(ready.config, [SPEC])
    registry = Registry()
    changes: list[int] = []
    following = asyncio.create_task(mirror.follow(ready.config, registry, lambda: changes.append(1)))
    await eventually(lambda: registry.specs() == [SPEC])
    changed = msgspec.structs.replace(SPEC, max_sequence_length=8)
    await store.publish(ready.config, [changed, OTHER])
    await eventually(lambda: registry.specs() == [changed, OTHER])
    await store.publish(ready.config, [OTHER])
    await eventually(lambda: registry.specs() == [OTHER])
    assert len(changes) >= 4
    following.cancel()


async def test_an_entry_that_cannot_be_read_is_skipped_and_the_others_are_served(ready: Broker) -> None:
    await store.publish(ready.config, [SPEC])
    await ready.config.put(f"{store.PREFIX}broken", b"{")
    registry = Registry()
    await mirror.snapshot(ready.config, registry)
    assert registry.specs() == [SPEC]


def test_the_organisation_may_be_left_out_where_that_is_unambiguous() -> None:
    twin = msgspec.structs.replace(SPEC, id="elsewhere/other.model")
    registry = Registry([SPEC, OTHER, twin])
    assert registry.resolve("Counting-Model") is SPEC
    with pytest.raises(ModelNotFoundError):
        registry.resolve("other.model")
