"""``X-SIE-MACHINE-PROFILE``: which of a model's lanes a request takes, in its own pool and in one that is made."""

from __future__ import annotations

import msgspec
import pytest

from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool import Pool, pool_key, queues_key
from sie_broker.pools.pool import encode as encoded
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_config.registry import Registry, lanes_of
from sie_ingress import pool_requests
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_sdk.errors import InvalidInputError, PoolCapacityError
from sie_sdk.pools import PoolSpec
from tests.ingress.conftest import SPEC

EVERYWHERE = msgspec.structs.replace(SPEC, machine_profiles=("cpu", "l4-spot", "H100"))
TEAM = Pool("team-a", {"l4-spot": 2, "h100": 1}, created_at=0.0, last_renewed=0.0, ttl_s=60.0)


def asked(value: str) -> dict[str, str]:
    return {"x-sie-machine-profile": value}


@pytest.mark.parametrize(
    ("value", "profile"),
    [
        ("", "cpu"),
        ("cpu", "cpu"),
        ("l4-spot", "l4-spot"),
        ("L4-Spot ", "l4-spot"),
        ("l4", "l4-spot"),  # the machines are the same
        ("h100-spot", "H100"),
        ("h100", "H100"),
        ("default/h100", "H100"),
        ("a100-40gb", "cpu"),  # the model is not placed there
        ("/", "cpu"),
    ],
)
def test_a_request_takes_the_lane_of_the_machine_it_asks_for_or_else_the_model_s_first(
    value: str, profile: str
) -> None:
    assert pool_requests.chosen(asked(value), lanes_of(EVERYWHERE)) == Lane("default", "default", profile)


def test_an_exact_name_comes_before_one_that_is_spot() -> None:
    both = lanes_of(msgspec.structs.replace(SPEC, machine_profiles=("l4-spot", "l4")))
    assert [pool_requests.chosen(asked(name), both).profile for name in ("l4", "l4-spot")] == ["l4", "l4-spot"]


async def test_a_pool_serves_a_model_on_each_machine_that_both_have() -> None:
    broker = MemoryBroker()
    spec = msgspec.structs.replace(EVERYWHERE, machine_profiles=("cpu", "l4-spot", "h100"))
    await broker.pools.put(pool_key(TEAM.name), encoded(TEAM))
    await broker.pools.put(queues_key(TEAM.name), TEAM.shape.encode())
    pools = Pools(Registry([spec]), Lanes(broker, 1.0), PoolTable(broker.pools), clock=lambda: 1.0)
    lanes = [await pools.lane(asked(value), spec) for value in ("team-a/h100", "team-a/cpu", "team-a/", "h100")]
    assert lanes == [
        Lane("team-a", "default", "h100"),
        Lane("team-a", "default", "l4-spot"),  # the model's first that the pool has
        Lane("team-a", "default", "l4-spot"),
        Lane("default", "default", "h100"),
    ]
    on_cpu = msgspec.structs.replace(SPEC, machine_profiles=("cpu", "t4"))
    with pytest.raises(PoolCapacityError, match="in bundle default on cpu or t4"):
        await pools.lane(asked("team-a/cpu"), on_cpu)


def test_a_pool_may_be_made_of_every_machine_that_a_model_is_placed_on() -> None:
    registry = Registry([EVERYWHERE])
    wanted = PoolSpec("team-a", gpus={"l4-spot": 2}, pinned_models=[SPEC.id])
    assert pool_requests.check_catalogue(wanted, registry) == [SPEC.id]
    with pytest.raises(InvalidInputError, match="'l4'"):
        pool_requests.check_catalogue(msgspec.structs.replace(wanted, gpus={"l4": 2}), registry)
