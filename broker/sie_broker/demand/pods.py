"""How many pods a lane should have: pure arithmetic on what waits, the clock passed in.

Up at once, down only after a quiet period, frozen while the queue cannot be read. Owns the rule and nothing else: who
looks is in ``holder``, how the answer reaches Knative in ``sessions``.
"""

from __future__ import annotations

import math

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """A backlog is to be cleared within ``objective_s`` seconds. ``pod_rate``: works a second of a pod not measured."""

    max_scale: int = 4
    quiet_s: float = 60.0
    objective_s: float = 5.0
    pod_rate: float = 20.0


class Demand(msgspec.Struct, frozen=True):
    """What a lane asks for, and since when less would do.

    ``pods`` stand until ``quiet_s`` seconds have passed since ``enough_at``, the last time they were all needed; then
    ``fewer``, the most that was needed meanwhile, takes their place.
    """

    pods: int = 0
    enough_at: float = -math.inf
    fewer: int = 0


def wanted(
    before: Demand, backlog: int | None, busy: bool, rate: float, now: float, policy: Policy, least: int = 0
) -> Demand:
    """The lane's demand at ``now`` (seconds on any steady clock).

    Args:
        before: the demand at the last look; ``Demand()`` at first.
        backlog: works not yet acknowledged; None when it could not be read: nothing changes, nor does quiet count.
        busy: whether anything was asked or answered since the last look, even if nothing waits now.
        rate: works that one pod clears in a second.
        least: pods that are needed in any case.
    """
    if backlog is None:
        return msgspec.structs.replace(before, enough_at=now) if before.pods else before
    need = min(policy.max_scale, max(pods_for(backlog, rate, policy), int(busy), least))
    if need >= before.pods:
        return Demand(pods=need, enough_at=now)
    fewer = max(before.fewer, need)
    if now - before.enough_at < policy.quiet_s:
        return msgspec.structs.replace(before, fewer=fewer)
    return Demand(pods=fewer, enough_at=now)


def pods_for(backlog: int, rate: float, policy: Policy) -> int:
    """Pods that clear ``backlog`` within the objective at ``rate`` each; one if anything waits, one a work at most."""
    return math.ceil(backlog / max(1.0, rate * policy.objective_s))


def open_sessions(pods: int) -> int:
    """Sessions that make Knative's autoscaler want ``pods`` at target 2: half a session below the step.

    With one session a pod at target 1 an overlap of milliseconds at renewal would ask for one GPU too many.
    """
    return max(0, 2 * pods - 1)
