"""How many threads a pass takes, by who leads and what is beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sie_bundle.engine.cores import FIRST_REST_S, LOOK_S, PAUSE_S, TRIAL, Cores, available

ONE, ALL = 1, 4


def heard(cores: Cores, threads: int, seconds: float, now: float, passes: int = TRIAL) -> None:
    for _ in range(passes):
        cores.took(threads, seconds, 1.0, now)


@pytest.fixture
def tried() -> Cores:
    """With a second for each of the first passes on one core."""
    cores = Cores(ONE, ALL)
    heard(cores, ONE, 1.0, 0.0)
    return cores


def of_pass(cores: Cores, now: float, beside: int = 0, leads: bool = True) -> int | None:
    return cores.of_pass(leads=leads, beside=beside, now=now)


def test_the_first_passes_take_one_core_and_tell_what_that_costs() -> None:
    cores = Cores(ONE, ALL)
    heard(cores, ONE, 1.0, 0.0, TRIAL - 1)
    assert of_pass(cores, 0.0) == ONE
    heard(cores, ONE, 1.0, 0.0, 1)
    assert of_pass(cores, 0.0) == ALL


def test_only_the_stream_that_leads_takes_the_cores_of_others(tried: Cores) -> None:
    assert of_pass(tried, 1.0) == ALL
    assert of_pass(tried, 1.0, leads=False) == ONE


def test_whoever_has_wanted_a_core_lately_keeps_it(tried: Cores) -> None:
    assert of_pass(tried, 10.0, beside=1) == ONE
    assert of_pass(tried, 10.0 + PAUSE_S / 2) == ONE
    assert of_pass(tried, 10.0 + PAUSE_S * 1.1) == ALL
    of_pass(tried, 20.0, beside=1, leads=False)  # of any stream
    assert of_pass(tried, 20.0 + PAUSE_S / 2) == ONE


def test_where_all_cores_are_slower_than_one_they_are_let_be_longer_each_time(tried: Cores) -> None:
    now = 1.0
    for rest in (FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S):
        assert of_pass(tried, now) == ALL
        heard(tried, ALL, 2.0, now)
        heard(tried, ONE, 1.0, now)  # what one core costs is asked anew
        assert of_pass(tried, now + rest * 0.9) == ONE
        now += rest * 1.1
    heard(tried, ALL, 0.5, now)  # it pays again
    heard(tried, ALL, 2.0, now)
    heard(tried, ONE, 1.0, now)
    assert of_pass(tried, now + FIRST_REST_S * 1.1) == ALL


def test_one_slow_pass_of_several_says_nothing(tried: Cores) -> None:
    heard(tried, ALL, 9.0, 1.0, TRIAL // 2)
    heard(tried, ALL, 0.5, 1.0, TRIAL - TRIAL // 2)
    assert of_pass(tried, 1.0) == ALL


def test_passes_with_something_beside_are_not_compared() -> None:
    cores = Cores(ONE, ALL)
    of_pass(cores, 1.0, beside=1)
    heard(cores, ONE, 1.0, 1.0 + PAUSE_S / 2)
    assert of_pass(cores, 5.0) == ONE


@pytest.mark.parametrize("usual", [None, 3])
def test_without_another_number_every_pass_takes_the_usual_one(usual: int | None) -> None:
    cores = Cores(usual, None)
    for _ in range(2 * TRIAL):
        assert of_pass(cores, 0.0) == usual
        cores.took(usual, 1.0, 1.0, 0.0)


class Loop:
    """An event loop's thread that takes ``share`` of a core."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.now = self.taken = 0.0

    def attended(self, cores: Cores, seconds: float) -> None:
        self.now, self.taken = self.now + seconds, self.taken + self.share * seconds
        cores.attended(self.taken, self.now)


def test_an_event_loop_that_takes_more_than_half_of_a_core_leaves_none_for_a_second_pass_on_two() -> None:
    loop, cores = Loop(0.7), Cores(1, 1, count=2)
    assert cores.left(0) and cores.left(1) and not cores.left(2)
    loop.attended(cores, 0.0)
    assert cores.left(1), "what it took before is not of lately"
    loop.attended(cores, LOOK_S)
    assert cores.left(0) and not cores.left(1)
    loop.share = 0.3
    loop.attended(cores, LOOK_S / 2)
    assert not cores.left(1), "it is looked at now and then"
    loop.attended(cores, LOOK_S)
    assert cores.left(1)


def test_of_many_cores_and_where_nobody_counted_them_the_event_loop_takes_no_stream_away() -> None:
    for cores, passes in ((Cores(1, 1, count=4), 3), (Cores(2, 2), 9)):
        cores.attended(0.0, 0.0)
        assert cores.left(passes)
    loop, four = Loop(1.0), Cores(1, 1, count=4)
    loop.attended(four, 0.0)
    loop.attended(four, 1.0)
    assert four.left(2) and not four.left(3)


@pytest.mark.parametrize(("given", "found"), [(None, "5000"), ("7", "7")])
def test_how_long_openmp_waits_awake_is_set_before_torch_is_imported_unless_the_environment_says(
    given: str | None, found: str
) -> None:
    told = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    program = (
        "import os, sys; from sie_bundle.bundle import Warming; warming = Warming(); warming.join();"
        "assert warming.failure is None and 'torch' in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=told | ({"GOMP_SPINCOUNT": given} if given else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == found


def system(root: Path, *limits: str) -> Path:
    """A file system that says to be in groups with these limits, the innermost last."""
    (root / "proc/self").mkdir(parents=True)
    folder = root / "sys/fs/cgroup"
    for number, limit in enumerate(limits):
        folder = folder / f"group-{number}"
        folder.mkdir(parents=True)
        (folder / "cpu.max").write_text(f"{limit}\n")
    (root / "proc/self/cgroup").write_text(f"0::/{folder.relative_to(root / 'sys/fs/cgroup')}\n")
    return root


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ([], 8),
        (["max 100000"], 8),
        (["200000 100000"], 2),
        (["150000 100000"], 2),
        (["20000 100000"], 1),
        (["400000 100000", "max 100000"], 4),
        (["1600000 100000", "300000 100000"], 3),
        (["nonsense"], 8),
        (["100000 0"], 8),
    ],
)
def test_a_container_has_the_cores_whose_time_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: list[str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert available(system(tmp_path, *limits)) == cores
