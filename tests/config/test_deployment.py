"""What is deployed travels through the config bucket, behind the queues that it needs; on both brokers."""

from __future__ import annotations

import msgspec

from sie_broker.contract import Broker
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, Work
from sie_config import machine_profile, placement
from sie_config.groundwork import Groundwork
from sie_config.mirror import Mirror
from sie_config.placement import Deployment
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lanes_of
from tests.config.writing import writing
from tests.ingress.conftest import EVERYTHING, SPEC

CPU = placement.deployment("cpu")
FREE = msgspec.structs.replace(SPEC, bundle="", parameters=33_000_000)
COMING = msgspec.structs.replace(EVERYTHING, bundle="", machine_profiles=("l4",))


def deployed(names: str) -> Deployment:
    return msgspec.structs.replace(CPU, deployed=machine_profile.deployed(names, CPU.machine_profiles))


def work(model: str, profile: str) -> Work:
    return Work(f"{model}-{profile}", "encode", Lane("default", "default", profile), model, b"{}", 1.0)


def groundwork(broker: Broker, registry: Registry) -> Groundwork:
    return Groundwork(broker, registry, PoolQueues(broker, registry, PoolTable(broker.pools)))


async def test_every_lane_of_every_model_has_its_queue_before_anybody_is_told(broker: Broker) -> None:
    registry = Registry([FREE], deployment=deployed("cpu,l4"))
    await groundwork(broker, registry).lay([COMING])
    for model, profile in ((FREE.id, "cpu"), (FREE.id, "l4"), (COMING.id, "l4")):
        await broker.submit(work(model, profile))
    told = await broker.config.get(placement.KEY)
    assert told is not None and placement.decode(told) == registry.deployment


async def test_what_is_told_is_put_right_again_and_otherwise_left_alone(broker: Broker) -> None:
    ground = groundwork(broker, Registry([FREE], deployment=CPU))
    await ground.lay()
    written = await broker.config.read(placement.KEY)
    await ground.look_over()
    assert await broker.config.read(placement.KEY) == written
    await broker.config.put(placement.KEY, b"{")
    await ground.lay()  # between two looks it is not asked about
    assert await broker.config.get(placement.KEY) == b"{"
    await ground.look_over()
    assert await broker.config.get(placement.KEY) == written.value


async def test_a_reader_places_models_by_what_the_config_service_told(broker: Broker) -> None:
    async with writing(broker, FREE):
        await broker.config.put(placement.KEY, placement.encode(deployed("l4")))
        registry, changes = Registry(), list[list[str]]()
        mirror = Mirror(broker.config, registry)
        await mirror.snapshot()
        assert [lane.profile for lane in lanes_of(registry.resolve(FREE.id))] == ["l4"]
        mirror.changed = lambda: changes.append([lane.profile for lane in lanes_of(registry.resolve(FREE.id))])
        await mirror.look()
        assert changes == []
        await broker.config.put(placement.KEY, placement.encode(deployed("cpu,h100")))
        await mirror.look()
        assert changes == [["cpu", "h100"]]


async def test_what_cannot_be_read_moves_no_model(broker: Broker) -> None:
    async with writing(broker, FREE):
        registry = Registry()
        mirror = Mirror(broker.config, registry)
        for value, profile in ((b"{", "cpu"), (placement.encode(deployed("l4")), "l4"), (b"[]", "l4")):
            await broker.config.put(placement.KEY, value)
            await mirror.look()
            assert [lane.profile for lane in lanes_of(registry.resolve(FREE.id))] == [profile]


async def test_the_config_service_keeps_what_it_was_started_with(broker: Broker) -> None:
    async with writing(broker, FREE):
        await broker.config.put(placement.KEY, placement.encode(deployed("h100")))
        registry = Registry(deployment=deployed("l4"))
        await Mirror(broker.config, registry).snapshot()
        assert [lane.profile for lane in lanes_of(registry.resolve(FREE.id))] == ["l4"]
