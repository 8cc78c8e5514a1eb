"""What is found out once is found out by one thread, and all others hear of the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sie_bundle.once import once

THREADS = 8


def test_threads_that_ask_at_the_same_time_hear_of_what_one_of_them_found() -> None:
    together = threading.Barrier(THREADS, timeout=10)
    asked = iter(range(100))

    @once
    def found(of: str) -> tuple[str, int]:
        threading.Event().wait(0.01)  # so that the others come meanwhile
        return of, next(asked)

    def ask(_: int) -> tuple[str, int]:
        together.wait()
        return found("here")

    with ThreadPoolExecutor(THREADS) as threads:
        assert set(threads.map(ask, range(THREADS))) == {("here", 0)}
    assert found("there") == ("there", 1)


def test_who_asks_after_a_failure_finds_out_anew() -> None:
    failing = [True]

    @once
    def found() -> int:
        if failing:
            raise ValueError("not now")
        return 1

    with pytest.raises(ValueError, match="not now"):
        found()
    failing.clear()
    assert found() == 1
