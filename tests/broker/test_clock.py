"""One time for everybody: near clocks are used as they are, others and those that jump give way to the server's."""

from __future__ import annotations

import time
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from sie_broker.clock import NEAR_S, Clock
from sie_broker.jetstream import server_clock
from sie_broker.jetstream.nats_broker import NatsBroker

EPOCH = 1_800_000_000.0
SECONDS = st.floats(-1e6, 1e6, allow_nan=False)


class Machine:
    """A machine whose wall clock somebody sets. ``at``: true seconds."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.at = 0.0
        self.off_s = off_s
        self.clock = Clock(lambda: EPOCH + self.at + self.off_s, lambda: 5.0 + self.at)

    def hear(self, took_s: float = 0.0) -> None:
        """The server, whose clock is right, is asked and answers."""
        steady = 5.0 + self.at
        self.clock.heard(EPOCH + self.at, steady - took_s / 2, steady + took_s / 2)


def test_a_clock_near_the_servers_is_used_as_it_is() -> None:
    machine = Machine(off_s=0.2)
    machine.hear()
    machine.at = 10.0
    assert machine.clock.now() == EPOCH + 10.2


def test_a_clock_that_is_off_gives_way_to_the_servers() -> None:
    machine = Machine(off_s=-300.0)
    assert machine.clock.now() == EPOCH - 300.0
    machine.hear()
    machine.at = 10.0
    assert machine.clock.now() == EPOCH + 10.0


def test_a_clock_that_jumps_is_not_followed_and_one_that_was_set_right_is_used_again() -> None:
    machine = Machine()
    machine.hear()
    machine.off_s = 300.0
    machine.at = 1.0
    assert machine.clock.now() == EPOCH + 1.0
    machine.off_s = 0.1
    assert machine.clock.now() == EPOCH + 1.1


def test_a_server_that_takes_long_to_answer_does_not_unseat_a_clock_that_may_be_right() -> None:
    machine = Machine(off_s=1.0)
    machine.hear(took_s=2.0)
    assert machine.clock.now() == EPOCH + 1.0


@given(SECONDS, SECONDS, SECONDS, st.floats(0, 1e6))
def test_two_machines_that_heard_the_server_agree_whatever_their_clocks_say_then_or_later(
    off_s: float, other_s: float, jump_s: float, later_s: float
) -> None:
    machines = Machine(off_s), Machine(other_s)
    for machine in machines:
        machine.hear()
        machine.at = later_s
    machines[1].off_s += jump_s
    one, other = (machine.clock.now() for machine in machines)
    assert abs(one - other) <= 4 * NEAR_S


async def test_the_server_tells_its_time(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    try:
        heard, ask = Clock(lambda: 0.0), partial(server_clock.ask, broker.nc)
        assert not await heard.hear(ask), "the bucket is not there yet"
        await broker.provision([])
        assert await heard.hear(ask)
        assert abs(heard.now() - time.time()) < 60
    finally:
        await broker.close()
