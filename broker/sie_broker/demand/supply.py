"""What comes of what is asked for: how many workers a lane gets, and when a Service that gets none has failed. Pure.

Nobody here may ask Kubernetes. What is known is who is up, how long workers have been asked for, how the Service
answers its sessions, and what a worker says that cannot start. Owns these rules and the words of a failure; times are
the deployment's (``clock``). Who looks is ``holder``, everybody hears of it by ``lane_status``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from sie_broker.records import Lane

HOPELESS_S = 60.0
"""How long a Service that is not there, or whose workers say why they cannot start, has to be put right."""
SETTLED_S = 60.0
"""Who has had fewer workers than are wanted for this long gets no more for now."""


class Answer(NamedTuple):
    """How a Service last answered a session without a worker."""

    words: str = ""
    """Empty: not at all; it holds what it is asked until a pod is ready."""
    unknown: bool = False
    """There is no such Service."""


class Granted(msgspec.Struct, frozen=True):
    """The most workers a lane had at a time, as far as that still holds at ``at``."""

    pods: int = 0
    at: float = 0.0


def granted(before: Granted, wanted: int, live: int, now: float) -> Granted:
    """What a lane may count on after a look: its budget is Knative's to know, and shows in what comes.

    More than before counts at once; fewer, where more are wanted, once it has stayed so. None at all teaches nothing.
    """
    if live >= before.pods or not 0 < live < wanted:
        return Granted(max(live, before.pods), now)
    return Granted(live, now) if now - before.at >= SETTLED_S else before


def failure(lane: Lane, waited_s: float, provision_s: float, answer: Answer, fault: str) -> str:
    """Why no worker of a Service can be had, in words for a caller; empty: there may still come one.

    Args:
        lane: the Service.
        waited_s: since when it was asked for one and had none.
        provision_s: how long a worker may take.
        answer: the Service's last.
        fault: what the last worker said that could not start; empty: none did.
    """
    budget_s = min(provision_s, HOPELESS_S) if fault or answer.unknown else provision_s
    if waited_s < budget_s:
        return ""
    if fault:
        known = f"the last one to try said: {fault}"
    elif answer.unknown:
        known = f"there is no such Service ({answer.words})"
    elif answer.words:
        known = f"its Service last answered: {answer.words}"
    else:
        known = "its Service has no pod that is ready: an image that cannot be started, or no node or GPU that is free"
    return f"No worker of {lane.bundle} on {lane.profile} has started within {budget_s:g} s; {known.rstrip('.')}."


class Supply:
    """What each lane gets and which Services get nothing. ``provision_s``: how long a worker may take to come."""

    def __init__(self, provision_s: float) -> None:
        self._provision_s = provision_s
        self._missing: dict[Lane, float] = {}
        self._short: dict[Lane, float] = {}
        self._faults: dict[Lane, str] = {}
        self._granted: dict[Lane, Granted] = {}

    def recall(self, lane: Lane, service: Lane, granted_pods: int, missing_since: float) -> None:
        """What another holder knew a moment ago; ``missing_since`` 0: it missed nobody."""
        self._granted[lane] = Granted(granted_pods)
        if missing_since:
            self._missing[service] = min(missing_since, self._missing.get(service, missing_since))

    def look(self, asked: Mapping[Lane, int], live: Mapping[Lane, int], now: float) -> None:
        """Take in how many workers each Service is asked for and has."""
        self._missing = {
            service: self._missing.get(service, now)
            for service, pods in asked.items()
            if pods and not live.get(service)
        }
        self._short = {
            service: self._short.get(service, now) for service, pods in asked.items() if 0 < live.get(service, 0) < pods
        }
        self._faults = {service: fault for service, fault in self._faults.items() if service in self._missing}

    def forget(self) -> None:
        """Nobody can be heard now, so nobody is missing."""
        self._missing.clear()
        self._short.clear()

    def gone(self, lane: Lane) -> None:
        """The lane's pool is no more."""
        self._granted.pop(lane, None)

    def said(self, service: Lane, fault: str) -> None:
        """A worker of the Service could not start."""
        self._faults[service] = fault

    @property
    def missing(self) -> Mapping[Lane, float]:
        """Services that were asked for workers and have none, and since when."""
        return self._missing

    def short(self, now: float) -> set[Lane]:
        """Services that have had workers for long, and fewer than they are asked for."""
        return {service for service, since in self._short.items() if now - since >= SETTLED_S}

    def failure(self, service: Lane, answer: Answer, now: float) -> str:
        """As `failure`, of a Service now."""
        if (since := self._missing.get(service)) is None:
            return ""
        return failure(service, now - since, self._provision_s, answer, self._faults.get(service, ""))

    def granted(self, lane: Lane, wanted: int, live: int, now: float) -> int:
        """The workers that the lane may count on, after a look at it now."""
        after = self._granted[lane] = granted(self._granted.get(lane, Granted(0, now)), wanted, live, now)
        return after.pods
