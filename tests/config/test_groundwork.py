"""What stands before the catalogue is told: the queues of models to come, each made once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_config.deployment import placement
from sie_config.groundwork import FEW, Groundwork
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other")
PLANNED = msgspec.structs.replace(SPEC, id="org/planned", status="planned", blocked_by="a head")
LANE = Lane("default", "default", "cpu")


class Broker(MemoryBroker):
    """Notes what it is asked to make: of all queues, or of some beside those there are."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[set[str]] = []
        self.some: list[set[str]] = []

    async def provision(self, queues: Iterable[tuple[Lane, str]]) -> None:
        queues = list(queues)
        self.all.append({model for _, model in queues})
        await super().provision(queues)

    async def provision_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        queues = list(queues)
        self.some.append({model for _, model in queues})
        await super().provision_also(queues)


def groundwork(broker: Broker, registry: Registry) -> Groundwork:
    return Groundwork(broker, registry, PoolQueues(broker, registry, PoolTable(broker.pools)))


async def test_all_is_laid_at_first_and_then_what_is_new_and_nothing_twice() -> None:
    broker, registry = Broker(), Registry([SPEC], deployment=placement.deployment())
    ground = groundwork(broker, registry)
    await ground.lay()
    assert (broker.all, broker.some) == ([{SPEC.id}], [])
    await ground.lay([OTHER, PLANNED])
    assert broker.some == [{OTHER.id}]
    await ground.lay([OTHER])  # its turn has come; it is not told yet
    assert broker.some == [{OTHER.id}, set()]
    registry.put(OTHER)
    await ground.lay([msgspec.structs.replace(OTHER, max_sequence_length=8)])
    assert broker.some == [{OTHER.id}, set(), set()]
    await ground.look_over()
    assert broker.all == [{SPEC.id}, {SPEC.id, OTHER.id}]


async def test_many_at_once_are_laid_with_all_the_others() -> None:
    broker, registry = Broker(), Registry([SPEC], deployment=placement.deployment())
    ground = groundwork(broker, registry)
    await ground.lay()
    many = [msgspec.structs.replace(SPEC, id=f"org/{number}") for number in range(FEW + 1)]
    await ground.lay(many)
    assert not broker.some and len(broker.all[1]) == FEW + 2


async def test_readers_learn_what_is_deployed() -> None:
    broker, registry = Broker(), Registry([SPEC], deployment=placement.deployment("cpu,l4"))
    await groundwork(broker, registry).lay()
    value = await broker.config.get(placement.KEY)
    assert value is not None and placement.decode(value) == registry.deployment
