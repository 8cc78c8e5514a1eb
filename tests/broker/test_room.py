"""Room and occupancy: places, who waits for one, and for how long there was none."""

from __future__ import annotations

import asyncio

from sie_broker.room import Occupancy, Room


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_full_room_lets_nobody_in_until_somebody_leaves() -> None:
    room = Room(2)
    room.take()
    room.take()
    waiting = asyncio.create_task(room.wait())
    room.take()  # another pull brought more than there was room for
    room.leave()
    await asyncio.sleep(0)
    assert (room.free, waiting.done()) == (0, False)
    room.leave()
    await waiting
    assert room.free == 1


def test_the_time_without_a_free_place_adds_up_over_all_rooms_and_counts_once() -> None:
    clock = Clock()
    full = Occupancy(clock)
    one, other = Room(1, full), Room(2, full)
    for change in (one.take, other.take, other.take, other.leave, one.leave, other.leave, other.take):
        change()
        clock.now += 1
    assert full.seconds == 4


def test_time_is_counted_while_it_passes() -> None:
    clock = Clock()
    busy = Occupancy(clock)
    assert busy.seconds == 0
    busy.enter()
    clock.now += 2
    assert busy.seconds == 2
    busy.enter()
    clock.now += 1
    busy.leave()
    clock.now += 1
    busy.leave()
    clock.now += 5
    assert busy.seconds == 4
