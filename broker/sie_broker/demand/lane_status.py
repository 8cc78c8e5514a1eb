"""How each lane stands, for everybody: what the demand leader knows, in the lanes bucket.

Owns the record, its key and bytes, and how often it is written. The leader alone writes it; a new leader finds in it
what was measured before. Readers: the ingress, and anybody with ``nats kv get sie_lanes status.<pool>.<bundle>...``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from sie_broker.contract import Bucket
from sie_broker.records import Lane
from sie_broker.subjects import lane_key

PREFIX = "status."
EVERY_S = 1.0
"""A lane's status is written at most this often; a change in between is told with the next."""
REFRESH_S = 5.0
"""And this often while there is anything to tell, changed or not: so its age says whether it can be believed."""
BELIEVED_S = 15.0
"""A backlog that is older than this is no longer believed."""


class LaneStatus(msgspec.Struct, frozen=True):
    """One lane at ``at`` (seconds since the epoch)."""

    lane: Lane
    waiting: int
    """Works queued or in hand."""
    rate: float
    """Works that one pod clears in a second."""
    measured: bool
    """Whether that was measured, and not only set."""
    wanted: int
    """Pods."""
    live: int
    """Pods that are ready."""
    at: float = 0.0
    granted: int = 0
    """The most pods it had at a time, as far as that still holds: what ``wanted`` may come to."""
    missing_since: float = 0.0
    """Since when its Service is asked for pods and has none that is ready, as ``at``; 0: it has, or is not asked."""
    failure: str = ""
    """Why that is believed to stay so until somebody puts it right; empty: a pod may still come by itself."""

    @property
    def at_rest(self) -> bool:
        """Nothing waits, and nobody is up or should be."""
        return not (self.waiting or self.wanted or self.live)


_encoder = msgspec.json.Encoder()
_statuses = msgspec.json.Decoder(LaneStatus)


def key(lane: Lane) -> str:
    """Where the lane's status is kept."""
    return PREFIX + lane_key(lane)


def read(value: bytes) -> LaneStatus:
    """The status of an entry.

    Raises:
        msgspec.DecodeError: written by a newer or broken writer.
    """
    return _statuses.decode(value)


class Board:
    """Writes statuses to ``bucket``. ``clock``: any steady one."""

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = bucket
        self._clock = clock
        self._told: dict[Lane, tuple[float, LaneStatus]] = {}

    async def tell(self, status: LaneStatus) -> None:
        """Write it, if it says something new and the last one is old enough.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        now = self._clock()
        at, last = self._told.get(status.lane, (-REFRESH_S, None))
        changed = last is None or msgspec.structs.replace(status, at=last.at) != last
        if now - at < (EVERY_S if changed else REFRESH_S) or (status.at_rest and not changed):
            return
        await self._bucket.put(key(status.lane), _encoder.encode(status))
        self._told[status.lane] = (now, status)

    async def forget(self, lane: Lane) -> None:
        """The lane is no more, as its pool is gone. Errors as `tell`."""
        await self._bucket.delete(key(lane))
        await self._bucket.delete(lane_key(lane))  # how long its cold starts took, which the ingress keeps there
        self._told.pop(lane, None)

    async def recall(self) -> list[LaneStatus]:
        """What was told last, by whoever led. Errors as `tell`; what cannot be read is left out."""
        found = []
        for name, value in (await self._bucket.entries()).items():
            if name.startswith(PREFIX):
                try:
                    found.append(read(value))
                except msgspec.DecodeError:
                    continue
        return found
