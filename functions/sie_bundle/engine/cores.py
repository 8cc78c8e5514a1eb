"""Cores: on how many threads a forward pass of a CPU computes. One, as a rule, with a pass for each core.

A pass that nobody has wanted anything beside for a while takes the other cores, too: a short text alone is answered in
three quarters of the time. Where another process wants the cores it would be three times the time, so what such passes
take is watched (`Cores.took`). Two of them at once would take turns with each other at every step, and be slower than
two with a core each; so one stream alone does this, the one that leads, and only after a pause. Its are then the only
threads of OpenMP besides the streams themselves, and no more than there are cores: of more, it lets none wait awake
(libgomp's throttled spin count), which costs more than the second core gives.

The event loop needs a core, too, when many ask for little: a pass that takes it away lets everybody wait for Python's
lock, whose holder stands still. So what the loop takes is looked at, and one pass more begins only where a core is
left, or a whole batch waits. Measured (``bench/history.md``), two cores answer 3,000 short texts a second that way,
and 2,300 with two passes at all times. Not here: the streams (``executor``).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

from sie_bundle import control_group

PAUSE_S = 0.1
"""For so long nobody must have wanted anything else."""
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""For so long no pass takes all cores after some that were slower for it."""
LOOK_S, ENOUGH = 0.05, 0.5
"""Seconds between two looks at what the event loop takes; and how much of a core must be left for another pass."""
TRIAL = 9
"""Passes of each kind that are compared; the first so many of a worker are on one core."""


class Cores:
    """How many threads each pass of a device takes, and whether there is a core left for one. The clock is passed in.

    Args:
        usual: threads of a pass; None: torch's own choice.
        alone: threads of one beside which there is nothing to do; None: as many.
        count: the cores there are; None: enough.
    """

    def __init__(self, usual: int | None, alone: int | None, count: int | None = None) -> None:
        self.usual = usual
        self._count = count
        self._looked, self._taken = float("-inf"), 0.0
        self._loop = 0.0
        """Cores that the event loop took lately."""
        self._alone = usual if alone is None else alone
        self._accompanied = float("-inf")
        self._again, self._rest_s = float("-inf"), FIRST_REST_S
        self._usually: list[float] = []
        self._on_all: list[float] = []
        """What the last passes with nothing beside took, of the time expected: `TRIAL` of each kind at most."""

    def of_pass(self, *, leads: bool, beside: int, now: float) -> int | None:
        """For a pass that begins at ``now`` seconds; ``beside``: other passes and loads, and requests that wait."""
        if beside:
            self._accompanied = now
        tried = len(self._usually) == TRIAL and now >= self._again
        return self._alone if leads and tried and self._lonely(now) else self.usual

    def took(self, threads: int | None, seconds: float, expected_s: float, now: float) -> None:
        """Hear what a pass of the stream that leads took.

        Args:
            threads: those it took.
            seconds: how long it took.
            expected_s: seconds that its model's cost says for its rows; 0: not known.
            now: seconds, as in `of_pass`.

        Passes on all cores that are slower than those on one mean that something else on this machine wants the cores:
        threads that wait for each other wait for it, too. So for a while, and longer each time, passes are as usual.
        """
        if expected_s <= 0 or self._alone == self.usual or not self._lonely(now):
            return
        if threads == self.usual:
            self._usually = [*self._usually, seconds / expected_s][-TRIAL:]
            return
        self._on_all.append(seconds / expected_s)
        if len(self._on_all) < TRIAL:
            return
        if median(self._on_all) < median(self._usually):
            self._rest_s = FIRST_REST_S
        else:
            self._again = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
            self._usually.clear()
        self._on_all.clear()

    def attended(self, taken_s: float, now: float) -> None:
        """Hear now and then how many seconds of CPU time the event loop's thread has taken, all in all."""
        if now - self._looked >= LOOK_S:
            self._loop = (taken_s - self._taken) / (now - self._looked)
            self._looked, self._taken = now, taken_s

    def left(self, passes: int) -> bool:
        """Whether so many passes and the event loop leave more than half of a core."""
        return self._count is None or self._count - passes * (self.usual or self._count) - self._loop > ENOUGH

    def _lonely(self, now: float) -> bool:
        return now - self._accompanied > PAUSE_S


def available(root: Path = Path("/")) -> int:
    """The cores this process has: those it may run on, or as many as its control groups give it the time of.

    A container with a limit sees all cores of its node. Passes on all of them would use up its time at once and then
    stand still for the rest of each tenth of a second. ``root``: of the file system.
    """
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min([count, *_limits(root)]))


def _limits(root: Path) -> Iterator[int]:
    for folder in control_group.folders(root):
        with suppress(OSError, ValueError, ZeroDivisionError):  # the top has no limit, and "max" is no number
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            yield math.ceil(quota / period)


def keep_awake() -> None:
    """Let OpenMP's threads wait awake through the steps between two products, not through the pause between requests.

    To be called before torch is imported; what the environment says goes first.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def take(number: int | None) -> None:
    """Let torch compute on so many threads when this one asks; None: on as many as it likes.

    Imports torch.
    """
    if number is not None:
        import torch

        torch.get_num_threads()  # the first question in a thread overwrites what was set before it
        torch.set_num_threads(number)
