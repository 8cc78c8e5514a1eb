"""What pools mean for demand, pure: the terms of each lane, and the pods of all lanes of a Service added up.

Pods are held per Service, and a pool has none of its own: what its lanes ask for is asked of the Service its workers
come from. Owns that arithmetic; the rule of one lane is in ``demand``, the loop in ``holder``.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sie_broker.demand.pods import Policy
from sie_broker.pools.pool import DEFAULT, service_of
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane


def stands_alone(lane: Lane, table: PoolTable) -> bool:
    """Whether the lane is a Service itself: of the default pool, or of one that the catalogue names."""
    return lane.pool == DEFAULT or lane.pool in table.homes


def is_gone(lane: Lane, table: PoolTable) -> bool:
    """Whether the lane is of a pool that is no more."""
    return not stands_alone(lane, table) and lane.pool not in table.pools


def terms(lane: Lane, table: PoolTable, policy: Policy, now: float) -> tuple[Policy, int]:
    """The lane's policy, and the least pods it asks for whether there is work or not.

    Args:
        now: seconds since the epoch. A pool whose lease has ended, or that is gone, asks for what waits and no longer.
    """
    if stands_alone(lane, table):
        return policy, 0
    pool = table.pools.get(lane.pool)
    if pool is None or not pool.living(now):
        return msgspec.structs.replace(policy, quiet_s=0.0), 0
    most = min(policy.max_scale, pool.most(lane.profile))
    return msgspec.structs.replace(policy, max_scale=most), min(pool.minimum, most)


def leased(table: PoolTable, now: float) -> set[Lane]:
    """The lanes of living pools that keep workers up."""
    return {lane for pool in table.pools.values() if pool.minimum and pool.living(now) for lane in pool.lanes()}


def service(lane: Lane, table: PoolTable) -> Lane:
    """The Service that the lane's workers come from."""
    return lane if stands_alone(lane, table) else service_of(lane)


def services(pods: Mapping[Lane, int], table: PoolTable) -> dict[Lane, int]:
    """How many pods all lanes of each Service ask for, or have, together."""
    counts: dict[Lane, int] = {}
    for lane, count in pods.items():
        own = service(lane, table)
        counts[own] = counts.get(own, 0) + count
    return counts


def unasked(present: Mapping[Lane, int], asked: Mapping[Lane, int], table: PoolTable) -> dict[Lane, int]:
    """Of the workers that are up, by lane, those that nobody asks their Service for.

    A worker that a pool has just asked for works for its home until it is assigned: it is no second one.
    """
    there, wanted = services(present, table), services(asked, table)
    left = {own: count - wanted.get(own, 0) for own, count in there.items()}
    found = {}
    for lane, count in present.items():
        own = service(lane, table)
        if (more := min(count - asked.get(lane, 0), left[own])) > 0:
            found[lane] = more
            left[own] -= more
    return found
