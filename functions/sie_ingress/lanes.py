"""Which lanes are warm and how they stand: what workers and the demand leader say, by age.

Owns the mirrors of presence and of the lanes' statuses, and how long a caller is told to wait. It decides nothing;
``submit`` asks it. How long cold starts take is in ``cold_starts``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sie_broker import clock
from sie_broker.contract import Broker
from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import BELIEVED_S, LaneStatus
from sie_broker.ending import cancelled
from sie_broker.records import Lane, WorkerState
from sie_broker.workers import Workers
from sie_ingress.cold_starts import ColdStarts
from sie_ingress.throughput import Throughput
from sie_sdk.errors import ProvisioningFailedError, QueueUnavailableError

log = logging.getLogger("sie.ingress.lanes")

SHORTEST_S, LONGEST_S = 1.0, 120.0
"""What a caller is told to wait at least and at most."""
LOOK_S, LOOK_AT_MOST_S = 0.25, 5.0
"""The same for one whose work is not queued: all that its next look costs is a small request."""

Drained = Callable[[Lane, float], None]
"""Nothing waited in the lane at that time, in seconds since the epoch."""
GivenUp = Callable[[Lane], None]
"""Nobody waits for the lane's workers any more."""


def expected_s(waiting: int, rate: float, pods: int, cold_s: float) -> float:
    """Seconds until work that comes now is answered, within what a caller may be told.

    Args:
        waiting: works before it.
        rate: works that one pod clears in a second.
        pods: those that clear them.
        cold_s: until the first of them is there.
    """
    return min(LONGEST_S, max(SHORTEST_S, cold_s + waiting / (rate * max(1, pods))))


class Lanes:
    """Live workers and statuses by lane. ``default_s``: the cold start assumed until one was measured."""

    def __init__(self, broker: Broker, default_s: float, clock: Callable[[], float] = clock.now) -> None:
        self._broker = broker
        self._clock = clock
        self._workers = Workers(clock)
        self._statuses: dict[Lane, LaneStatus] = {}
        self._told: set[str] = set()
        """Keys of statuses that were told since their whole was last read."""
        self._drained: list[Drained] = []
        self._given_up: list[GivenUp] = []
        self._cold_starts = ColdStarts(broker.lanes, default_s, clock)
        self._throughput = Throughput()

    async def follow(self) -> None:
        """Keep the mirrors up to date until cancelled."""
        statuses = self._broker.lanes.watch(self.told, f"{lane_status.PREFIX}>")
        async with self._broker.presence.watch(self.heard), statuses:
            while not cancelled():
                await self._read()
                await asyncio.sleep(60)

    async def _read(self) -> None:
        self.throughput()  # forgets whom nobody has heard of
        try:
            for worker, value in (await self._broker.presence.entries()).items():
                self.heard(worker, value)
            await self._read_statuses()
        except QueueUnavailableError as error:
            log.warning("presence was not read: %s", error)

    async def _read_statuses(self) -> None:
        self._told.clear()
        entries = await self._broker.lanes.entries()
        # Of a lane that went while the connection was lost nobody tells any more.
        gone = {key for lane in self._statuses if (key := lane_status.key(lane)) not in entries} - self._told
        for key in gone:
            self.told(key, None)
        for key in entries.keys() - self._told:  # what was told while the whole was read is newer
            self.told(key, entries[key])

    def heard(self, worker: str, value: bytes | None) -> None:
        """Take in one heartbeat; None: the worker said goodbye."""
        state = self._workers.heard(worker, value)
        if state is not None:
            self._throughput.heard(worker, state.at, state.completed)
        if state is not None and state.state == "ready":
            # Away from home it may have been up already, and only changed its pool.
            self._cold_starts.ready(state.lane, started=state.lane.pool == state.home)

    def told(self, key: str, value: bytes | None) -> None:
        """Take in how a lane stands; None: it is no more. Other keys are none of this table's."""
        if not key.startswith(lane_status.PREFIX):
            return
        self._told.add(key)
        if value is None:
            for lane in [lane for lane in self._statuses if lane_status.key(lane) == key]:
                del self._statuses[lane]
                self._cold_starts.gone(lane)
            return
        try:
            status = lane_status.read(value)
        except msgspec.DecodeError as fault:
            log.warning("skipped %s: %s", key, fault)
            return
        known = self._statuses.get(status.lane)
        if known is None or known.at < status.at:
            self._statuses[status.lane] = status
            if status.at_rest:
                self._cold_starts.rested(status.lane, status.at)
            if self.given_up(status.lane) is not None:
                self._cold_starts.given_up(status.lane)
                for given_up in self._given_up:
                    given_up(status.lane)
            if not status.waiting:
                for drained in self._drained:
                    drained(status.lane, status.at)

    def on_drained(self, drained: Drained) -> None:
        """Call ``drained`` whenever a lane is seen without waiting work."""
        self._drained.append(drained)

    def on_given_up(self, given_up: GivenUp) -> None:
        """Call ``given_up`` whenever a lane is told of whose workers do not come."""
        self._given_up.append(given_up)

    def given_up(self, lane: Lane, job: str | None = None) -> ProvisioningFailedError | None:
        """What to tell who waits for the lane, if it has no worker and none is to be expected; else None.

        ``job``: the work that stays queued.
        """
        status = self._statuses.get(lane)
        if status is None or not status.failure or not self._believed(status) or self.live(lane):
            return None
        labels = f"sie.dev/bundle={lane.bundle},sie.dev/machine-profile={lane.profile}"
        about = {} if job is None else {"job": job, "location": f"/v1/jobs/{job}"}
        return ProvisioningFailedError(
            status.failure,
            hint=f"It is tried on{', and the work stays queued' if job else ''}. Who runs this finds the reason with "
            f"`kubectl get pods -l {labels}`, and in the logs of those pods.",
            retry_after=LONGEST_S,
            missing_s=round(self._clock() - status.missing_since, 1),
            **about,
        )

    def workers(self) -> list[WorkerState]:
        """Everybody heard of lately."""
        return self._workers.all()

    def throughput(self) -> float:
        """Works that all workers together answered in a second, lately."""
        return self._throughput.per_second(worker.worker for worker in self.workers())

    def live(self, lane: Lane) -> bool:
        """Whether a ready worker serves the lane now."""
        return self._workers.live(lane)

    def holds(self, lane: Lane, model: str) -> bool:
        """Whether a ready worker of the lane has the model loaded."""
        return self._workers.holds(lane, model)

    def statuses(self) -> list[LaneStatus]:
        """How each lane stands, as far as it is known; who is live is our own knowledge, and newer."""
        return [
            msgspec.structs.replace(status, live=self._workers.ready(lane), waiting=self._waiting(status))
            for lane, status in sorted(self._statuses.items())
        ]

    def woken(self, lane: Lane) -> None:
        """Work was queued on a cold lane; from now on a cold start is being measured, unless it is given up already."""
        if self.given_up(lane) is None:
            self._cold_starts.woken(lane)

    async def retry_after(self, lane: Lane) -> float:
        """Seconds until what is queued in the lane now should be answered: its start if it is cold, and its backlog."""
        live, status = self._workers.ready(lane), self._statuses.get(lane)
        cold_s = 0.0 if live else await self._start_s(lane)
        if status is None:
            return expected_s(0, 1.0, live, cold_s)
        # More pods may be wanted than the Service's budget, which is not known here, but for what it has come to.
        pods = live or min(status.wanted, max(1, status.granted))
        return expected_s(self._waiting(status), status.rate, pods, cold_s)

    async def late_s(self, lane: Lane) -> float:
        """Seconds since which the lane's first worker should have been there; 0: one is, or it is not late."""
        return 0.0 if self.live(lane) else max(0.0, -await self._left_s(lane))

    async def _start_s(self, lane: Lane) -> float:
        """Seconds until a cold lane is up: what is left of its start, or half of what it is late by now.

        The later it is, the longer it may still be: who is told so asks twice, and not every second.
        """
        left = await self._left_s(lane)
        return left if left >= 0 else -left / 2

    async def _left_s(self, lane: Lane) -> float:
        status = self._statuses.get(lane)
        missing = status.missing_since if status is not None and self._believed(status) else 0.0
        return await self._cold_starts.left_s(lane, missing)

    async def look_again_s(self, lane: Lane) -> float:
        """Seconds until a caller without a job should look whether the cold lane is up: half of what is left of its
        start, or a quarter of what it is late, so that nobody waits for much longer than it takes."""
        left = await self._left_s(lane)
        return min(LOOK_AT_MOST_S, max(LOOK_S, left / 2, -left / 4))

    def _waiting(self, status: LaneStatus) -> int:
        """What waits; nothing, when that was long ago: a leader that is gone says nothing any more."""
        return status.waiting if self._believed(status) else 0

    def _believed(self, status: LaneStatus) -> bool:
        return self._clock() - status.at < BELIEVED_S
