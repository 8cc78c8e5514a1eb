"""The demand holder: looks at the queues, decides how many pods each lane should have, holds that many sessions.

Owns the loop, what counts as activity (work that waits, a wake from an ingress, a worker that completed something) and
what a new holder begins with. The rules are in ``pods`` and ``supply``, the sessions in ``sessions``, who is the holder
in ``lease``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from sie_broker import clock
from sie_broker.contract import Broker
from sie_broker.demand import pool_demand
from sie_broker.demand.lane_status import BELIEVED_S, Board, LaneStatus
from sie_broker.demand.pods import Demand, Policy, open_sessions, wanted
from sie_broker.demand.rate import Rates
from sie_broker.demand.supply import Answer, Supply
from sie_broker.ending import cancelled
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_broker.workers import Workers
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.broker.holder")

AT_REST = 4
"""How many times less often the queues are looked at while no lane wants a pod."""
AGAIN_S = 0.2
"""The pause after presence could not be read."""
HANDED_OVER_S = 4 * BELIEVED_S
"""How old what another holder told may be: older than that, nobody held anything meanwhile."""
SETTLE_S = 10.0
"""How long after the start everybody who is heard of counts as wanted: by then all who are up have been heard."""


class Held(Protocol):
    """What the holder steers; ``sessions.Sessions`` in the process."""

    def hold(self, lane: Lane, count: int) -> None: ...

    def cold(self, services: Collection[Lane]) -> None: ...

    def answer(self, lane: Lane) -> Answer: ...


class Holder:
    """Turns what waits in ``broker`` into open sessions. One per deployment: two would ask for twice the pods."""

    def __init__(
        self,
        broker: Broker,
        pools: PoolTable,
        sessions: Held,
        policy: Policy,
        look_s: float = 0.5,
        settle_s: float = SETTLE_S,
        provision_s: float = 900.0,
    ) -> None:
        self._broker = broker
        self._pools = pools
        self._sessions = sessions
        self._policy = policy
        self._look_s = look_s
        self._settle_s = settle_s
        self._settled_at = 0.0
        self._demands: dict[Lane, Demand] = {}
        self._open: dict[Lane, int] = {}
        self._crowded: set[Lane] = set()
        self._short: set[Lane] = set()
        self.began = asyncio.Event()
        """Set once it knows who is up, and what is wanted therefore."""
        self.working: set[Lane] = set()
        """The lanes that had work at the last look."""
        self._busy: set[Lane] = set()
        self._workers = Workers()
        self._completed: dict[str, int] = {}
        self._inherited: dict[Lane, int] = {}
        """Pods that the holder before wanted; more may be up, which are on their way out and do not know it yet."""
        self._rates = Rates(policy.pod_rate)
        self._supply = Supply(provision_s)
        self._failed: dict[Lane, str] = {}
        self._board = Board(broker.lanes)
        self._look = asyncio.Event()
        self._readable = True

    async def run(self) -> None:
        """Hold demand until cancelled."""
        async with self._broker.on_wake(self._woken), self._broker.presence.watch(self._heartbeat):
            await self._take_over()
            while not cancelled():
                await self._decide()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._look.wait()
                self._look.clear()

    async def _take_over(self) -> None:
        """Learn who is up, for which pools and at what rate: who did not would close the sessions that keep them."""
        while not cancelled():
            try:
                await self._workers.read(self._broker.presence)
                told = await self._board.recall()
                if await self._pools.read():
                    self._recall(told)
                    break
            except QueueUnavailableError as error:
                log.warning("who is up is not known, nothing is decided yet: %s", error)
            await asyncio.sleep(AGAIN_S)
        now = time.monotonic()
        self._settled_at = now + self._settle_s
        self._count_in(now)
        self._hold()
        self.began.set()

    def _recall(self, told: list[LaneStatus]) -> None:
        """Go on from what another holder knew: rates for good, who is missing if that was a moment ago."""
        for status in told:
            if status.measured:
                self._rates.recall(status.lane, status.rate)
            handed_over = clock.now() - status.at < HANDED_OVER_S
            if handed_over:
                self._inherited[status.lane] = status.wanted
            since = status.missing_since if handed_over else 0.0
            self._supply.recall(status.lane, pool_demand.service(status.lane, self._pools), status.granted, since)

    def _count_in(self, now: float) -> None:
        """Begin where another holder left off: who is up counts as wanted until the quiet period has passed."""
        for lane in pool_demand.leased(self._pools, clock.now()):
            _, least = pool_demand.terms(lane, self._pools, self._policy, clock.now())
            if least > self._demands.get(lane, Demand()).pods:
                log.info("%s: %d pods wanted (leased)", lane, least)
                self._demands[lane] = Demand(least, now)
        asked = self.pods
        for lane, more in pool_demand.unasked(self._workers.present(), asked, self._pools).items():
            most = self._policy.max_scale
            pods = min(asked.get(lane, 0) + more, most, self._inherited.get(lane, most))
            if pods > asked.get(lane, 0):
                log.info("%s: %d up that nobody asked for", lane, more)
                self._demands[lane] = Demand(pods, now)

    @property
    def pods(self) -> dict[Lane, int]:
        """What each lane asks for now, whichever pool it is of."""
        return {lane: demand.pods for lane, demand in self._demands.items()}

    def look(self) -> None:
        """Something changed: look at once."""
        self._look.set()

    def _hold(self) -> None:
        """Hold the sessions of each Service."""
        asked, most = pool_demand.services(self.pods, self._pools), self._policy.max_scale
        crowded = {service for service, pods in asked.items() if pods > most}
        for service in crowded - self._crowded:
            log.warning("%s: pools ask for %d pods, and %d is the most: some wait", service, asked[service], most)
        self._crowded = crowded
        for service in self._open.keys() | asked.keys():
            count = open_sessions(min(most, asked.get(service, 0)))
            if count != self._open.get(service, 0):
                self._sessions.hold(service, count)
            self._open[service] = count

    def _pause_s(self) -> float:
        """Seconds to the next look: longer at rest, when only work that came without a wake would wait for it."""
        return self._look_s if any(demand.pods for demand in self._demands.values()) else AT_REST * self._look_s

    async def _decide(self) -> None:
        backlog, now = await self._backlog(), time.monotonic()
        if backlog is not None:
            self.working = {lane for lane, count in backlog.items() if count}
        if now < self._settled_at:
            self._count_in(now)
        self._forget_lost()
        busy, self._busy = self._busy, set()
        leased = pool_demand.leased(self._pools, clock.now())
        for lane in self._demands.keys() | (backlog or {}).keys() | busy | leased | self._workers.present().keys():
            policy, least = pool_demand.terms(lane, self._pools, self._policy, clock.now())
            before = self._demands.get(lane, Demand())
            waiting = None if backlog is None else backlog.get(lane, 0)
            if waiting is None and lane in busy and not before.pods:
                waiting = 0  # a wake is news enough to start the first pod, even if the queue cannot be read
            rate = self._rates.of(lane).works_per_s
            after = wanted(before, waiting, lane in busy, rate, now, policy, least)
            if after.pods != before.pods:
                log.info("%s: %d pods wanted (%s waiting)", lane, after.pods, waiting)
            self._demands[lane] = after
        self._hold()
        self._look_for_missing(heard=backlog is not None)
        if backlog is not None:
            await self._tell(backlog)

    def _look_for_missing(self, *, heard: bool) -> None:
        """See which Services have no worker although they are asked; ``heard``: whether anybody could be heard."""
        if not heard:
            return self._supply.forget()
        live = {lane: self._workers.ready(lane) for lane in self._demands}
        asked, there = (pool_demand.services(pods, self._pools) for pods in (self.pods, live))
        now = clock.now()
        self._supply.look(asked, there, now)
        self._sessions.cold(self._supply.missing)
        failed = {
            service: reason
            for service in self._supply.missing
            if (reason := self._supply.failure(service, self._sessions.answer(service), now))
        }
        for service in failed.keys() - self._failed.keys():
            log.error("%s: %s Its sessions stay open, its work waits.", service, failed[service])
        for service in self._failed.keys() - failed.keys():
            log.info("%s: %s", service, "a worker is there" if there.get(service) else "nothing is asked of it now")
        self._failed = failed
        short = self._supply.short(now)
        for service in short - self._short:
            wanted, have = asked[service], there[service]
            log.warning("%s: %d pods wanted and %d there: its budget (max-scale), or no room", service, wanted, have)
        self._short = short
        return None

    async def _tell(self, backlog: Mapping[Lane, int]) -> None:
        """Tell how each lane stands, and nothing more of a pool that is gone once nothing is left of it."""
        try:
            for lane, demand in list(self._demands.items()):
                rate, live, now = self._rates.of(lane), self._workers.ready(lane), clock.now()
                service = pool_demand.service(lane, self._pools)
                told = LaneStatus(
                    lane=lane,
                    waiting=backlog.get(lane, 0),
                    rate=float(f"{rate.works_per_s:.3g}"),  # a rate that moved by less is no news
                    measured=rate.windows > 0,
                    wanted=demand.pods,
                    live=live,
                    at=now,
                    granted=self._supply.granted(lane, demand.pods, live, now),
                    missing_since=self._supply.missing.get(service, 0.0) if demand.pods else 0.0,
                    failure=self._failed.get(service, "") if demand.pods else "",
                )
                if told.at_rest and pool_demand.is_gone(lane, self._pools):
                    await self._board.forget(lane)
                    del self._demands[lane]
                    self._supply.gone(lane)
                    self._rates.gone(lane)
                else:
                    await self._board.tell(told)
        except QueueUnavailableError as error:
            log.warning("how lanes stand was not told: %s", error)

    async def _backlog(self) -> dict[Lane, int] | None:
        try:
            backlog = await self._broker.backlog()
        except QueueUnavailableError as error:
            if self._readable:
                log.warning("the queue cannot be read, demand stays as it is: %s", error)
            self._readable = False
            return None
        if not self._readable:
            log.info("the queue can be read again")
        self._readable = True
        return backlog

    def _woken(self, lane: Lane) -> None:
        self._busy.add(lane)
        if lane not in self._demands or not self._demands[lane].pods:
            self._look.set()  # only the first pod is worth a look of its own: wakes may come by the thousand

    def _heartbeat(self, worker: str, value: bytes | None) -> None:
        if (state := self._workers.heard(worker, value)) is None:
            self._forget(worker)
            return
        if state.fault:
            self._supply.said(pool_demand.service(state.lane, self._pools), state.fault)
        self._rates.heard(state)
        if state.completed != self._completed.get(worker, 0):
            self._busy.add(state.lane)
        self._completed[worker] = state.completed

    def _forget(self, worker: str) -> None:
        self._completed.pop(worker, None)
        self._rates.forget(worker)

    def _forget_lost(self) -> None:
        """Forget those who went without a goodbye."""
        for worker in self._completed.keys() - {state.worker for state in self._workers.all()}:
            self._forget(worker)
