"""What is deployed travels through the config bucket, behind the queues that it needs; on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import msgspec
import pytest
from nats.js.api import ConsumerConfig

from sie_broker.contract import Broker
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool import Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, Work
from sie_broker.subjects import token
from sie_config.deployment import machine_profile, placement
from sie_config.deployment.placement import Deployment
from sie_config.epochs.mirror import Mirror
from sie_config.groundwork import FEW, Groundwork
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lanes_of
from sie_sdk.errors import ConfigurationError
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import EVERYTHING, SPEC

CPU = placement.deployment("cpu")
FREE = msgspec.structs.replace(SPEC, bundle="", parameters=33_000_000)
COMING = msgspec.structs.replace(EVERYTHING, bundle="", machine_profiles=("l4",))


def deployed(names: str) -> Deployment:
    return msgspec.structs.replace(CPU, deployed=machine_profile.deployed(names, CPU.machine_profiles))


def is_deployed(registry: Registry, wanted: Deployment) -> bool:
    return registry.deployment == wanted


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


class Provisioned(MemoryBroker):
    """Notes which queues it was asked for, and whether for these alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, set[str]]] = []

    async def provision(self, queues: Iterable[tuple[Lane, str]]) -> None:
        self.asked.append(("all", {f"{lane} {model}" for lane, model in queues}))

    async def provision_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        self.asked.append(("also", {f"{lane} {model}" for lane, model in queues}))


async def test_a_write_asks_for_the_queues_that_are_new_with_it_alone() -> None:
    broker, registry = Provisioned(), Registry([FREE], deployment=deployed("cpu,l4"))
    ground = groundwork(broker, registry)
    own = {f"default/default/cpu {FREE.id}", f"default/default/l4 {FREE.id}"}
    await ground.lay([FREE])
    await ground.lay([COMING])
    await ground.lay([COMING])  # its turn to be written has come
    await ground.lay([msgspec.structs.replace(FREE, revision="2")])
    await ground.lay([msgspec.structs.replace(COMING, status="planned", blocked_by="a head")])
    many = [msgspec.structs.replace(COMING, id=f"org/m{number}") for number in range(FEW + 1)]
    await ground.lay(many)
    await ground.look_over()
    new = f"default/default/l4 {COMING.id}"
    every = own | {new} | {f"default/default/l4 {spec.id}" for spec in many}
    nothing = ("also", set[str]())
    assert broker.asked == [("all", own), ("also", {new}), nothing, nothing, nothing, ("all", every), ("all", own)]


async def test_a_model_that_comes_has_its_queues_in_the_pools_that_use_its_lane() -> None:
    broker, registry = Provisioned(), Registry([FREE], deployment=deployed("cpu,l4"))
    table = PoolTable(broker.pools)
    for name, profile in (("team", "l4"), ("other", "cpu")):
        table.pools[name] = Pool(name, {profile: 1}, created_at=0.0, last_renewed=0.0, ttl_s=600.0)
    table.pools["ended"] = Pool("ended", {"l4": 1}, created_at=0.0, last_renewed=-1.0, ttl_s=1.0)
    ground = Groundwork(broker, registry, PoolQueues(broker, registry, table, clock=lambda: 1.0))
    await ground.lay()
    await ground.lay([COMING])
    assert broker.asked[-1] == ("also", {f"default/default/l4 {COMING.id}", f"team/default/l4 {COMING.id}"})


async def test_a_model_whose_queue_is_refused_keeps_no_other_from_its_own(nats_url: str) -> None:
    """So it can be written away again."""
    broker = NatsBroker(nats_url, name="config")
    await broker.connect()
    await broker.provision([])
    taken = ConsumerConfig(durable_name="theirs", filter_subject=f"sie.work.default.default.cpu.*.{token(FREE.id)}")
    await broker.nc.jetstream().add_consumer("WORK_default", taken)
    ground = groundwork(broker, Registry([FREE, SPEC], deployment=CPU))
    await ground.lay()
    await broker.submit(work(SPEC.id, "cpu"))
    assert await broker.config.get(placement.KEY) is not None
    with pytest.raises(ConfigurationError, match="not unique"):
        await groundwork(broker, Registry(deployment=CPU)).lay([FREE])
    await broker.close()


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


async def test_a_following_reader_is_told_what_is_deployed_anew_and_need_not_look(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(broker, FREE):
        registry = Registry()
        mirror, looked = Mirror(broker.config, registry), asyncio.Event()
        look = mirror.look

        async def once() -> None:
            await look()
            looked.set()

        monkeypatch.setattr(mirror, "look", once)
        monkeypatch.setattr("sie_config.epochs.mirror.LOOK_S", 3600.0)
        following = asyncio.create_task(mirror.follow())
        await looked.wait()
        for names in ("l4", "cpu,h100"):
            await broker.config.put(placement.KEY, placement.encode(wanted := deployed(names)))
            await eventually(partial(is_deployed, registry, wanted))
            assert [lane.profile for lane in lanes_of(registry.resolve(FREE.id))] == names.split(",")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
