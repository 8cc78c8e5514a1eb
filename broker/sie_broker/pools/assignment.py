"""Which worker works for which pool: pure, from what the pools want and who is there.

Minimum workers first, the oldest pool's before the next one's; then one for the default pool if it has work; then one
at a time to whoever has least of what it wants, before whom is only kept warm whoever has work. Then as few workers as
possible change their pool, idle ones rather than busy ones. Who carries it out is in ``assigner``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sie_broker.pools.pool import DEFAULT, Pool, service_of
from sie_broker.records import Lane


class Member(NamedTuple):
    """A worker that may be given to a pool."""

    name: str
    service: Lane
    """What it was started as: a lane of the default pool."""
    pool: str
    """Whom it works for now."""
    idle: bool


class Claim(NamedTuple):
    """How many workers of one service a pool wants: ``least`` come first, ``most`` are enough."""

    pool: str
    least: int
    most: int


def claims(pools: Iterable[Pool], service: Lane, pods: Mapping[Lane, int], now: float) -> list[Claim]:
    """What each pool wants of a service, the oldest pool first.

    Args:
        pods: workers that each lane's own demand asks for (see ``demand``). A pool whose lease has ended wants no more
            than that: the last of its work is still done.
    """
    found = []
    for pool in sorted(pools, key=lambda each: (each.created_at, each.name)):
        for lane in pool.lanes():
            if service_of(lane) == service:
                most = pool.most(lane.profile)
                least = min(pool.minimum, most) if pool.living(now) else 0
                found.append(Claim(pool.name, least, max(least, min(most, pods.get(lane, 0)))))
    return found


def assign(
    pools: Collection[Pool], pods: Mapping[Lane, int], working: Collection[Lane], workers: Iterable[Member], now: float
) -> dict[str, str]:
    """The pool of each worker that works for another than the default pool.

    Args:
        pools: all there are, those whose lease has ended too.
        pods: see `claims`; what the default pool's lanes ask for is under their own.
        working: the lanes that have work. What others ask for is kept up for work to come.
        workers: everybody whose home is the default pool.
        now: seconds since the epoch.
    """
    services: dict[Lane, list[Member]] = {}
    for worker in workers:
        services.setdefault(worker.service, []).append(worker)
    assigned: dict[str, str] = {}
    for service, members in services.items():
        busy = {lane.pool for lane in working if service_of(lane) == service}
        had = Counter(member.pool for member in members)
        granted = grants(claims(pools, service, pods, now), pods.get(service, 0), len(members), busy, had)
        assigned |= _placed(granted, members)
    return assigned


def grants(
    wanted: Iterable[Claim], at_home: int, workers: int, busy: Collection[str], had: Mapping[str, int]
) -> dict[str, int]:
    """How many of ``workers`` each pool gets; the others stay at home, where ``at_home`` are wanted.

    ``busy``: the pools that have work. ``had``: how many workers each has now.
    """
    wanted = list(wanted)
    left = workers
    got = {DEFAULT: 0} | {claim.pool: 0 for claim in wanted}
    for claim in wanted:
        got[claim.pool] = min(claim.least, left)
        left -= got[claim.pool]
    got[DEFAULT] = min(1, at_home, left) if DEFAULT in busy else 0
    left -= got[DEFAULT]
    most = {DEFAULT: at_home} | {claim.pool: claim.most for claim in wanted}
    while left:
        short = [name for name in got if got[name] < most[name]]
        if not short:
            break
        got[min(short, key=lambda name: (got[name] / most[name], name not in busy, -had.get(name, 0)))] += 1
        left -= 1
    del got[DEFAULT]
    return got


def _placed(granted: Mapping[str, int], members: Iterable[Member]) -> dict[str, str]:
    """Who it is: those who are there stay, busy ones first; then those who must leave a pool anyway, then others."""
    placed: dict[str, str] = {}
    free = []
    for member in sorted(members, key=lambda each: (each.idle, each.name)):
        if list(placed.values()).count(member.pool) < granted.get(member.pool, 0):
            placed[member.name] = member.pool
        else:
            free.append(member)
    free.sort(key=lambda each: (each.pool == DEFAULT, not each.idle, each.name))
    for pool, number in granted.items():
        for _ in range(number - list(placed.values()).count(pool)):
            placed[free.pop(0).name] = pool
    return placed
