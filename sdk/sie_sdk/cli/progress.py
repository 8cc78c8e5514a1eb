"""What is said on standard error while a command works: what it waits for, how far it is, how long it will take.

Owns the bar of a terminal, the lines of a log, and their silence. Not here: results.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from sie_sdk.errors import ConnectionFailedError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from sie_sdk.types import Progress

LINE_EVERY_S = 10.0
"""How often a log hears of work that goes on."""

REDRAWN_EVERY_S = 0.1

COUNTED_BYTES = 1 << 20


class Narrator:
    """Says what a call waits for, each thing once, and how far it is; a call's ``progress``."""

    def __init__(self, say: Callable[[str], object], reach: Callable[[int], object] = lambda done: None) -> None:
        self._say = say
        self._reach = reach
        self._said = ""
        self._heard = False

    def __call__(self, progress: Progress) -> None:
        # A program may wait for a server to come up. A person who mistyped its address should learn so at once.
        if progress.state == "unreachable" and not self._heard:
            raise ConnectionFailedError(
                progress.message or "The server could not be reached.",
                hint="Check --url and that the server runs (`sie up` starts one on this machine).",
            )
        self._heard = True
        self._reach(progress.done)
        line = f"{progress.state}: {progress.message}" if progress.message else progress.state
        if progress.state not in ("running", "done") and line != self._said:
            self._said = line
            self._say(line)


class Meter:
    """Counts what is done. This one shows nothing but what is to be said, and is what a short call has."""

    _done = 0

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left on the terminal."""

    def add(self, count: int) -> None:
        """So many more are done."""

    def reach(self, done: int) -> None:
        """So many are done in all."""
        self.add(done - self._done)

    def say(self, line: str) -> None:
        """A line beside whatever is shown."""
        click.echo(line, err=True)


class Silence(Meter):
    """For ``--quiet``."""

    def say(self, line: str) -> None:
        """Nothing."""


class Log(Meter):
    """A line now and then, for standard error that is no terminal."""

    def __init__(
        self, total: int | None, every_s: float = LINE_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._every_s = every_s
        self._clock = clock
        self._began = self._told = clock()

    def add(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._told >= self._every_s:
            self._told = now
            self.say(describe(self._done, self._total, now - self._began))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._told > self._began:
            self.say(describe(self._done, None, self._clock() - self._began))


class Bar(Meter):
    """A bar with the number done, the rate and the time left, which goes when the work is over.

    ``sums_up``: a line stays that says how much was done.
    """

    def __init__(self, total: int | None, clock: Callable[[], float] = time.monotonic, *, sums_up: bool = True) -> None:
        self._total = total
        self._sums_up = sums_up
        self._clock = clock
        self._began = self._told = clock()
        self._bars = _bars()
        self._row = self._bars.add_task("", total=total, said="")

    def __enter__(self) -> Meter:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if error is None and self._sums_up:
            super().say(describe(self._done, None, self._clock() - self._began))

    def add(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now - self._told >= REDRAWN_EVERY_S:
            self._told = now
            told = describe(self._done, self._total, now - self._began)
            self._bars.update(self._row, completed=self._done, said=told)

    def say(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


def meter(total: int | None, *, quiet: bool, plain: bool) -> Meter:
    """What suits a call for ``total`` inputs, or an unknown number.

    ``plain``: there is nothing to measure, or results go to the terminal themselves and no bar may be drawn through.
    """
    if quiet:
        return Silence()
    if plain:
        return Meter()
    return Bar(total) if sys.stderr.isatty() else Log(total)


def describe(done: int, total: int | None, elapsed_s: float) -> str:
    """``1,200 of 20,000, 400/s, 47 s left``; without a total ``1,200 in 3 s, 400/s``."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    speed = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
    if total is None:
        return f"{done:,} in {duration(elapsed_s)}, {speed}"
    left = f", {duration((total - done) / rate)} left" if rate and done < total else ""
    return f"{done:,} of {total:,}, {speed}{left}"


def duration(seconds: float) -> str:
    """In the two largest units that say something."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count_lines(file: BinaryIO | None) -> int | None:
    """The lines of a file of the disk from where it stands, which stays.

    None of a pipe, whose end nobody knows, and of what begins as a JSON array does, which has any number of lines.
    """
    if file is None:
        return None
    try:
        number = file.fileno()
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return None
        place, count, last = file.tell(), 0, b"\n"
        if os.pread(number, COUNTED_BYTES, place).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            return None
        while data := os.pread(number, COUNTED_BYTES, place):
            count, place, last = count + data.count(b"\n"), place + len(data), data[-1:]
    except OSError:  # a stream that has no file, or none that can be read twice
        return None
    return count + (last != b"\n")


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns: tuple[Any, ...] = (SpinnerColumn(), BarColumn(), TextColumn("{task.fields[said]}"))
    return Bars(*columns, console=Console(stderr=True), transient=True)
