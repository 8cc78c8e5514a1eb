"""What is said while a command works: rates, times left, lines of a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sie_sdk.cli import progress
from sie_sdk.cli.progress import Log, Meter, Silence


class Clock:
    """Seconds that a test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "told"),
    [
        (1200, 20000, 3.0, "1,200 of 20,000, 400/s, 47 s left"),
        (20000, 20000, 3.0, "20,000 of 20,000, 6,667/s"),
        (30, 20, 3.0, "30 of 20, 10/s"),
        (0, 20, 3.0, "0 of 20, 0.0/s"),
        (1200, None, 90.0, "1,200 in 1 min 30 s, 13/s"),
        (5, None, 0.0, "5 in 0.0 s, 0.0/s"),
        (1, 100_000, 1.0, "1 of 100,000, 1.0/s, 27 h 46 min left"),
    ],
)
def test_how_far_it_is_in_one_line(done: int, total: int | None, elapsed_s: float, told: str) -> None:
    assert progress.describe(done, total, elapsed_s) == told


def test_a_log_hears_now_and_then_and_of_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Log(100, every_s=10, clock=clock) as log:
        for clock.now in (1.0, 9.0, 10.0, 15.0, 20.0, 25.0):
            log.add(10)
    assert capsys.readouterr().err.splitlines() == [
        "30 of 100, 3.0/s, 23 s left",
        "50 of 100, 2.5/s, 20 s left",
        "60 in 25 s, 2.4/s",
    ]


def test_a_log_of_short_work_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Log(100, every_s=10, clock=clock) as log:
        log.add(100)
        clock.now = 9.0
    assert capsys.readouterr() == ("", "")


def test_a_log_of_work_that_failed_claims_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with pytest.raises(ValueError, match="over"), Log(100, every_s=1, clock=clock) as log:
        clock.now = 2.0
        log.add(1)
        raise ValueError("over")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_quiet_is_quiet_and_a_short_call_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    Silence().say("provisioning")
    Meter().say("queued")
    assert capsys.readouterr().err == "queued\n"


@pytest.mark.parametrize(
    ("data", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"a\n" * 700_000, 700_000)]
)
def test_lines_of_a_file_are_counted_without_moving_in_it(tmp_path: Path, data: bytes, lines: int) -> None:
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as file:
        assert progress.count_lines(file) == lines
        assert file.read() == data


def test_an_array_has_any_number_of_lines(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b'\n ["a",\n "b", "c"]\n')
    with (tmp_path / "in").open("rb") as file:
        assert progress.count_lines(file) is None


def test_lines_of_a_pipe_are_not_known() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert progress.count_lines(file) is None
    assert progress.count_lines(None) is None
