"""Pacing: how long a thread rests beside a busy device, and that it does not beside an idle one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.residency.pacing import BUSY_S, SHARE, STEP_S, Pace, Paced
from tests import tiny_model


class World:
    """A device, a thread and a clock that move when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked = 5.0
        self.passes = 3
        self.rests: list[float] = []

    def pace(self) -> Pace:
        return Pace(lambda: self.passes, lambda: self.worked, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds

    def work(self, seconds: float, passes: int = 0) -> None:
        self.worked += seconds
        self.now += seconds
        self.passes += passes


@pytest.fixture
def world() -> World:
    return World()


def test_beside_a_busy_device_a_step_is_followed_by_a_rest_that_makes_it_a_small_share(world: World) -> None:
    pace = world.pace()
    for _ in range(10):
        world.work(0.01, passes=1)
        pace.rest()
    worked = 0.1
    assert worked / (worked + sum(world.rests)) == pytest.approx(SHARE)


def test_beside_an_idle_device_nobody_rests(world: World) -> None:
    pace = world.pace()
    for _ in range(10):
        world.work(0.01)
        pace.rest()
    assert world.rests == []


def test_a_device_that_has_become_idle_is_not_waited_for(world: World) -> None:
    pace = world.pace()
    world.work(0.01, passes=1)
    pace.rest()
    world.now += BUSY_S
    world.work(0.01)
    pace.rest()
    assert len(world.rests) == 1


def test_short_steps_are_rested_for_together(world: World) -> None:
    pace = world.pace()
    for _ in range(2):
        world.work(STEP_S * 0.6, passes=1)
        pace.rest()
    assert world.rests == [pytest.approx(STEP_S * 1.2 * (1 / SHARE - 1))]


def test_paced_tensors_are_those_of_the_checkpoint(tmp_path: Path, world: World) -> None:
    folder = tiny_model.make(tmp_path)
    plain = Checkpoint(tiny_model.spec(folder), folder).tensors
    paced = Paced(plain, world.pace())
    assert set(paced) == set(plain) and len(paced) == len(plain)
    world.work(1.0, passes=1)
    assert all(torch.equal(paced[name], plain[name]) for name in plain)
    assert len(world.rests) == 1
