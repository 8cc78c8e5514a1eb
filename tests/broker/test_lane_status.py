"""When a lane's status is written: on change, at most once a second, and again while there is anything to tell."""

from __future__ import annotations

import msgspec

from sie_broker.contract import Broker
from sie_broker.demand import lane_status
from sie_broker.demand.lane_status import Board, LaneStatus
from sie_broker.memory import MemoryBucket
from sie_broker.records import Lane
from sie_broker.subjects import lane_key

LANE = Lane(pool="team.a", bundle="minilm", profile="cpu")
BUSY = LaneStatus(LANE, waiting=7, rate=20.0, measured=True, wanted=1, live=1, at=1000.0)
AT_REST = LaneStatus(LANE, waiting=0, rate=20.0, measured=True, wanted=0, live=0, at=1000.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counting(MemoryBucket):
    """Remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    async def put(self, key: str, value: bytes) -> None:
        self.written.append(lane_status.read(value).waiting)
        await super().put(key, value)


async def written(*told: tuple[float, LaneStatus]) -> list[int]:
    """What is waiting according to each write, of statuses told at these times."""
    clock, bucket = Clock(), Counting()
    board = Board(bucket, clock)
    for at, status in told:
        clock.now = at
        await board.tell(msgspec.structs.replace(status, at=1000.0 + at))
    return bucket.written


def waiting(count: int) -> LaneStatus:
    return msgspec.structs.replace(BUSY, waiting=count)


async def test_a_change_is_told_at_once_but_not_twice_within_a_second() -> None:
    told = [(0.0, waiting(1)), (0.4, waiting(2)), (0.8, waiting(3)), (1.1, waiting(4)), (1.5, waiting(5))]
    assert await written(*told) == [1, 4]


async def test_what_does_not_change_is_told_every_five_seconds_while_there_is_anything() -> None:
    assert await written(*((at / 2, BUSY) for at in range(30))) == [7, 7, 7]


async def test_a_lane_at_rest_is_told_once() -> None:
    assert await written((0.0, BUSY), (2.0, AT_REST), *((10.0 + at, AT_REST) for at in range(60))) == [7, 0]


def test_a_lane_with_work_or_a_pod_that_is_wanted_or_there_is_not_at_rest() -> None:
    assert AT_REST.at_rest
    for name in ("waiting", "wanted", "live"):
        assert not msgspec.structs.replace(AT_REST, **{name: 1}).at_rest


async def test_a_new_leader_reads_what_the_last_one_told(broker: Broker) -> None:
    await broker.provision([])
    await broker.lanes.put("team=2Ea.minilm.cpu", b"[12.5]")
    await broker.lanes.put("status.of.something.newer", b"?")
    await Board(broker.lanes).tell(BUSY)
    assert await Board(broker.lanes).recall() == [BUSY]
    assert lane_status.read(await broker.lanes.get(lane_status.key(LANE)) or b"") == BUSY


async def test_of_a_lane_that_is_no_more_nothing_stays() -> None:
    bucket = MemoryBucket()
    board = Board(bucket)
    await board.tell(BUSY)
    await bucket.put(lane_key(LANE), b"[12.5]")  # its cold starts
    await board.forget(LANE)
    assert await bucket.entries() == {}
