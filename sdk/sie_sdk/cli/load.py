"""A closed loop: so many callers, each of whom asks again as soon as it was answered, for so many seconds.

Owns the callers, their clocks and the tally. Knows no model and no server: what it is given to do is a function.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from sie_sdk.errors import SIEError

PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
"""After an error a caller pauses, or a server that refuses would be asked as fast as it can refuse."""


class Tally(msgspec.Struct, frozen=True):
    """What came of a load. ``elapsed_s`` ends with the last answer; ``latencies_s`` are of requests that worked."""

    elapsed_s: float
    latencies_s: list[float]
    errors: dict[str, int]
    last_error: SIEError | None = None

    def latency_ms(self, share: float) -> float:
        """The latency that ``share`` of the requests did not exceed, in milliseconds: an answer's own, none between."""
        ordered = sorted(self.latencies_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000


class Load:
    """A load to be put on; ``stop`` ends it early."""

    def __init__(self, ask: Callable[[int], object], callers: int, seconds: float, requests: int | None = None) -> None:
        """Make it; nothing is asked yet.

        Args:
            ask: one request; its number counts from 0. Called by several threads.
            callers: how many ask at a time.
            seconds: until no new request is begun.
            requests: no more than these are begun.
        """
        self._ask = ask
        self._callers = callers
        self._seconds = seconds
        self._requests = requests
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._begun = 0
        self._latencies: list[float] = []
        self._errors: Counter[str] = Counter()
        self._last_error: SIEError | None = None

    def stop(self) -> None:
        """Begin no new request."""
        self._stopped.set()

    def run(self, tell: Callable[[int], object] = lambda done: None, every_s: float = 0.25) -> Tally:
        """Put it on and wait for its end; ``tell`` hears now and then how many requests were answered."""
        began = time.perf_counter()
        threads = [threading.Thread(target=self._call, args=(began,), daemon=True) for _ in range(self._callers)]
        for thread in threads:
            thread.start()
        try:
            self._join(threads, tell, every_s)
        except KeyboardInterrupt:
            self.stop()
            self._join(threads, tell, every_s)
            raise
        finally:
            self.tally = self._tallied(time.perf_counter() - began)
        return self.tally

    def _join(self, threads: Sequence[threading.Thread], tell: Callable[[int], object], every_s: float) -> None:
        for thread in threads:
            while thread.is_alive():
                thread.join(every_s)
                tell(len(self._latencies))

    def _tallied(self, elapsed_s: float) -> Tally:
        return Tally(elapsed_s, list(self._latencies), dict(self._errors), self._last_error)

    def _call(self, began: float) -> None:
        while not self._stopped.is_set() and time.perf_counter() - began < self._seconds:
            number = self._next()
            if number is None:
                return
            sent = time.perf_counter()
            try:
                self._ask(number)
            except SIEError as error:
                with self._lock:
                    self._errors[error.code] += 1
                    self._last_error = error
                self._stopped.wait(min(error.retry_after or PAUSE_S, LONGEST_PAUSE_S))
            else:
                self._latencies.append(time.perf_counter() - sent)

    def _next(self) -> int | None:
        with self._lock:
            if self._begun == self._requests:
                return None
            self._begun += 1
            return self._begun - 1
