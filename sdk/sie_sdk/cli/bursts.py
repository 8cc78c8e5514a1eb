"""Lines that come one by one, from a pipe or a person: which of them are there already, so that none waits for others.

Owns the reading ahead and when a burst ends. Not here: what a line says (``inputs``), how a burst is asked for
(``inference``).
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeAlias, TypeVar

T = TypeVar("T")
Ready: TypeAlias = Callable[[float], bool]
"""Whether the next one is there within so many seconds."""

BURST_S = 0.1
"""How long what has come may wait for more to go with it."""
READ_BYTES = 1 << 16


class Lines:
    """The lines of a stream, and whether another one is there yet. Nobody else reads the stream."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while self._lines or not self._ended:
            if self._lines:
                yield self._lines.popleft()
            else:
                self._read()

    def ready(self, within_s: float) -> bool:
        """Whether a line that is not empty, or the end, is there within so many seconds."""
        end = time.monotonic() + within_s
        while not self._ended and not any(map(bytes.strip, self._lines)):
            if not select.select([self._number], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
            self._read()
        return True

    def _read(self) -> None:
        data = os.read(self._number, READ_BYTES)
        self._ended = not data
        *whole, rest = data.split(b"\n")
        for each in whole:
            self._lines.append(b"".join([*self._begun, each, b"\n"]))
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        if self._ended and self._begun:
            self._lines.append(b"".join(self._begun))


def lines(file: BinaryIO) -> Lines | None:
    """The lines of a stream that may make one wait; None of a file, all of which is there."""
    try:
        number = file.fileno()
        if stat.S_ISREG(os.fstat(number).st_mode):
            return None
        select.select([number], [], [], 0)
    except OSError:  # a stream that has no file, or none that this system can wait for
        return None
    return Lines(number)


def burst(first: T, items: Iterator[T], ready: Ready) -> Iterator[T]:
    """``first`` and those after it, until one is not there when `BURST_S` have passed."""
    end = time.monotonic() + BURST_S
    yield first
    while ready(max(0.0, end - time.monotonic())):
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def always(within_s: float) -> bool:
    """Of a file, and of arguments."""
    return True
