"""Many calls at a time, whatever order they end in: both drivers, on calls that only wait and need no server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_sdk import drivers
from sie_sdk.drivers import AHEAD, AsyncLine, Line
from sie_sdk.effects import Call, Report, Server, Together, Wait
from sie_sdk.errors import InferenceError, SIEError
from sie_sdk.types import Progress

SERVER = Server("http://nowhere", {})


class Work:
    """Calls that take as many short waits as ``waits`` says and then give their number, or fail if it is negative."""

    def __init__(self, waits: list[int]) -> None:
        self.waits = waits
        self.begun = self.under_way = self.most = 0
        self._lock = threading.Lock()

    def calls(self) -> Iterator[Call[int]]:
        for number, waits in enumerate(self.waits):
            self.begun += 1
            yield self._call(number, waits)

    def _call(self, number: int, waits: int) -> Call[int]:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            for _ in range(abs(waits)):
                yield Wait(0.0005)
            if waits < 0:
                raise InferenceError(f"{number} failed.", field=f"items[{number}]")
            yield Report(Progress("done", done=1))
            return number
        finally:
            with self._lock:
                self.under_way -= 1


def blocking(work: Work, width: int, at_once: bool, told: Callable[[Progress], object] | None = None) -> Iterator[int]:
    line = Line(None, SERVER, threading.Semaphore())  # type: ignore[arg-type]  # nothing is sent
    return drivers.in_order(line, Together(work.calls(), width, lambda one: one), told, at_once=at_once)


def taken_blocking(work: Work, width: int, at_once: bool, ahead: list[int]) -> list[int]:
    results = []
    with contextlib.closing(blocking(work, width, at_once)) as running:  # type: ignore[type-var]  # a generator
        for result in running:
            results.append(result)
            ahead.append(work.begun - len(results))
    return results


def taken_awaiting(work: Work, width: int, at_once: bool, ahead: list[int]) -> list[int]:
    results: list[int] = []

    async def run() -> None:
        line = AsyncLine(None, SERVER, asyncio.Semaphore())  # type: ignore[arg-type]  # nothing is sent
        together = Together(work.calls(), width, lambda one: one)
        async with contextlib.aclosing(drivers.in_order_async(line, together, at_once=at_once)) as running:
            async for result in running:
                results.append(result)
                ahead.append(work.begun - len(results))

    try:
        asyncio.run(run())
    except SIEError as error:
        error.details["taken"] = results
        raise
    return results


TAKE = pytest.mark.parametrize("take", [taken_blocking, taken_awaiting], ids=["blocking", "awaiting"])
WAITS = st.lists(st.integers(0, 4), max_size=30)


@TAKE
@given(WAITS, st.integers(1, 5), st.booleans())
@settings(max_examples=40)
def test_results_come_in_order_and_no_more_calls_are_under_way_than_may_be(
    take: Callable[..., list[int]], waits: list[int], width: int, at_once: bool
) -> None:
    work, ahead = Work(waits), list[int]()
    assert take(work, width, at_once, ahead) == [*range(len(waits))]
    assert work.most <= width
    assert max(ahead, default=0) <= AHEAD * width
    assert work.under_way == 0


@TAKE
@given(WAITS, WAITS, st.integers(1, 5))
@settings(max_examples=30)
def test_without_hurry_the_error_comes_after_all_results_before_it(
    take: Callable[..., list[int]], before: list[int], after: list[int], width: int
) -> None:
    work, ahead = Work([*before, -2, *after]), list[int]()
    with pytest.raises(InferenceError) as caught:
        take(work, width, False, ahead)
    assert caught.value.field == f"items[{len(before)}]"
    assert len(ahead) == len(before)


@TAKE
def test_in_a_hurry_the_first_error_ends_calls_that_are_before_it(take: Callable[..., list[int]]) -> None:
    work, ahead = Work([10**9, -1, 10**9, *[1] * 100]), list[int]()
    with pytest.raises(InferenceError) as caught:
        take(work, 3, True, ahead)
    assert caught.value.field == "items[1]"
    assert (ahead, work.begun < 20) == ([], True)


def test_what_is_under_way_ends_when_the_results_are_left() -> None:
    work = Work([100, 10**9, 10**9, 10**9])
    running = blocking(work, 3, True)
    assert next(running) == 0
    running.close()  # type: ignore[attr-defined]  # a generator
    for thread in threading.enumerate():
        if thread.name.startswith("sie-call"):
            thread.join(20)
    assert work.under_way == 0


def test_the_listener_is_called_on_the_callers_thread_in_the_order_things_happen() -> None:
    heard: list[str] = []
    work = Work([1] * 20)
    assert [*blocking(work, 4, True, told=lambda _: heard.append(threading.current_thread().name))] == [*range(20)]
    assert heard == [threading.current_thread().name] * 20


def test_an_exception_that_is_no_error_of_ours_reaches_the_caller_as_it_is() -> None:
    def broken() -> Call[Any]:
        yield Wait(0.0)
        raise ZeroDivisionError("a bug")

    line = Line(None, SERVER, threading.Semaphore(2))  # type: ignore[arg-type]  # nothing is sent
    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(drivers.in_order(line, Together([broken(), broken()], 2, lambda one: one)))
