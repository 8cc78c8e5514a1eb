"""Runs calls, one or many at a time: a driver that blocks, with threads for many, and one that awaits, with tasks.

Owns what each effect does, how many calls are under way, and that the end of one ends the others. Not here: when to
send or wait (``settle``), HTTP (``transport``), the public methods (``client``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

import httpx

from sie_sdk import transport
from sie_sdk.connections import AsyncConnections, Connections
from sie_sdk.effects import Call, Effect, Reply, Report, Send, Server, Together, Wait
from sie_sdk.errors import SIEError
from sie_sdk.types import Progress

T = TypeVar("T")

CANCEL_CHECK_S = 0.05
"""How late a call that awaits something, or its reply, may notice its ``cancel``."""

AHEAD = 2
"""Chunks in hand for each that is under way: some wait to be sent, or to be taken by the caller."""

Listener: TypeAlias = Callable[[Progress], object] | None


class Line(NamedTuple):
    """A blocking client's way to its server. ``slots``: how many of its connections calls for many items may take."""

    http: httpx.Client | Connections
    server: Server
    slots: threading.Semaphore


class AsyncLine(NamedTuple):
    """An awaiting client's."""

    http: httpx.AsyncClient | AsyncConnections
    server: Server
    slots: asyncio.Semaphore


# -- blocking ----------------------------------------------------------------------------------------------------------


def run(line: Line, call: Call[T], listener: Listener = None, stop: threading.Event | None = None) -> T:
    """Run a call to its end on this thread; returns its result or raises its :class:`SIEError`.

    ``stop``: of one of many, whose requests take turns at the line's slots; once it is set, the call ends with
    `Stopped` at its next effect.
    """
    outcome: Any = None
    while True:
        try:
            effect = _advance(call, outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        if stop is not None and stop.is_set():
            call.close()
            raise Stopped
        outcome = None
        try:
            match effect:
                case Send():
                    outcome = _send(line, effect) if stop is None else _send_in_turn(line, effect, stop)
                case Wait():
                    _pause(effect, stop)
                case Report():
                    _tell(listener, effect.progress)
                case Together():
                    outcome = [*in_order(line, effect, listener)]
        except SIEError as error:
            outcome = error


def in_order(line: Line, together: Together, listener: Listener = None, *, at_once: bool = True) -> Generator[Any]:
    """The results of many calls in their order, each as soon as it and those before it are there.

    The next call is taken from ``together.calls`` when there is room for it, on the caller's thread, where the
    listener is called too. ``at_once``: the first error is raised at once, else after the results before it. Closing
    this generator ends what is under way; a request that waits for its reply ends with it, unheard.
    """
    tell, calls = _teller(together, listener), together.calls
    assert isinstance(calls, Iterable)
    if together.width == 1:
        for call in calls:
            yield run(line, call, tell)
        return
    crew = _Crew(line, together.width)
    try:
        yield from crew.results(iter(calls), tell, at_once)
    finally:
        crew.stop()


class Stopped(Exception):  # noqa: N818 - no error, and nobody outside sees it
    """A call was ended because another of the same crew failed, or nobody wants the results any more."""


class _Crew:
    """Threads that run calls, and the news from them. Daemons: the end of the process waits for none of them."""

    def __init__(self, line: Line, width: int) -> None:
        self._line = line
        self._width = width
        self._calls: SimpleQueue[tuple[int, Call[Any]] | None] = SimpleQueue()
        self._news: SimpleQueue[tuple[int, Progress | _End]] = SimpleQueue()
        self._stop = threading.Event()
        self._given = 0

    def results(self, calls: Iterator[Call[Any]], tell: Listener, at_once: bool) -> Iterator[Any]:
        ended: dict[int, _End] = {}
        taken, more = 0, True
        while True:
            while more and taken not in ended and self._given < taken + AHEAD * self._width:
                if (call := next(calls, None)) is None or any(end.error for end in ended.values()):
                    more = False
                else:
                    self._give(call)
                while not self._news.empty():
                    self._hear(ended, tell, at_once)
            if taken == self._given:
                return
            while taken not in ended:
                self._hear(ended, tell, at_once)
            yield ended.pop(taken).value()
            taken += 1

    def stop(self) -> None:
        self._stop.set()
        for _ in range(self._width):
            self._calls.put(None)

    def _give(self, call: Call[Any]) -> None:
        if self._given < self._width:
            threading.Thread(target=self._work, name=f"sie-call-{self._given}", daemon=True).start()
        self._calls.put((self._given, call))
        self._given += 1

    def _hear(self, ended: dict[int, _End], tell: Listener, at_once: bool) -> None:
        place, news = self._news.get()
        if isinstance(news, Progress):
            _tell(tell, news)
        else:
            ended[place] = news
            if at_once and news.error is not None:
                raise news.error

    def _work(self) -> None:
        while (given := self._calls.get()) is not None and not self._stop.is_set():
            place, call = given

            def tell(progress: Progress, place: int = place) -> None:
                self._news.put((place, progress))

            try:
                end = _End(run(self._line, call, tell, self._stop))
            except BaseException as error:
                end = _End(error=error)
            self._news.put((place, end))
            del given, call, end  # a result is not to stay until the next one


class _End(NamedTuple):
    """What became of a call."""

    result: Any = None
    error: BaseException | None = None

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def _send(line: Line, send: Send) -> Reply | None:
    """The reply. A request that is cancelled is left to a thread of its own, since nothing wakes it."""
    if (cancel := send.cancel) is None:
        return transport.send(line.http, line.server, send)
    came: SimpleQueue[_End] = SimpleQueue()

    def ask() -> None:
        try:
            end = _End(transport.send(line.http, line.server, send))
        except BaseException as error:
            end = _End(error=error)
        came.put(end)

    threading.Thread(target=ask, name="sie-request", daemon=True).start()
    while True:
        try:
            reply: Reply = came.get(timeout=CANCEL_CHECK_S).value()
            return reply
        except Empty:
            if cancel.is_set():
                return None


def _send_in_turn(line: Line, send: Send, stop: threading.Event) -> Reply | None:
    """`_send` over one of the connections that calls for many items share; none is kept while a call waits."""
    end = time.monotonic() + transport.patience_s(send)
    while not line.slots.acquire(timeout=CANCEL_CHECK_S):
        if stop.is_set():
            raise Stopped
        if send.cancel is not None and send.cancel.is_set():
            return None
        if time.monotonic() > end:
            raise transport.no_connection(send)
    try:
        return _send(line, send)
    finally:
        line.slots.release()


def _pause(wait: Wait, stop: threading.Event | None) -> None:
    if wait.cancel is not None:
        wait.cancel.wait(wait.seconds)
    elif stop is not None:
        stop.wait(wait.seconds)
    else:
        time.sleep(wait.seconds)


# -- awaiting ----------------------------------------------------------------------------------------------------------


async def run_async(line: AsyncLine, call: Call[T], listener: Listener = None, *, in_turn: bool = False) -> T:
    """:func:`run` for an event loop. Cancelling the task ends the call wherever it waits. ``in_turn``: one of many."""
    outcome: Any = None
    while True:
        try:
            effect = _advance(call, outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = None
        try:
            match effect:
                case Send():
                    outcome = await (_send_in_turn_async if in_turn else _send_async)(line, effect)
                case Wait():
                    await _pause_async(effect)
                case Report():
                    _tell(listener, effect.progress)
                case Together():
                    async with contextlib.aclosing(in_order_async(line, effect, listener)) as results:
                        outcome = [result async for result in results]
        except SIEError as error:
            outcome = error


async def in_order_async(
    line: AsyncLine,
    together: Together,
    listener: Listener = None,
    *,
    at_once: bool = True,
) -> AsyncGenerator[Any]:
    """:func:`in_order` for an event loop; what is under way is cancelled when it ends."""
    tell = _teller(together, listener)
    calls = together.calls
    coming = aiter(calls) if isinstance(calls, AsyncIterable) else _each(calls)
    if together.width == 1:
        async for call in coming:
            yield await run_async(line, call, tell)
        return
    slots = asyncio.Semaphore(together.width)
    tasks: deque[asyncio.Task[Any]] = deque()
    more = True

    async def one(call: Call[Any]) -> Any:
        async with slots:
            return await run_async(line, call, tell, in_turn=True)

    try:
        while True:
            while more and len(tasks) < AHEAD * together.width and not (tasks and tasks[0].done()):
                following: Call[Any] | None = await anext(coming, None)
                if following is None or any(map(_failed, tasks)):
                    more = False
                else:
                    tasks.append(asyncio.create_task(one(following)))
            if not tasks:
                return
            while not tasks[0].done() and not (at_once and any(map(_failed, tasks))):
                await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
            if at_once and (failed := next(filter(_failed, tasks), None)):
                failed.result()
            yield tasks.popleft().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def _each(calls: Iterable[Call[Any]]) -> AsyncIterator[Call[Any]]:
    for call in calls:
        yield call


async def _send_async(line: AsyncLine, send: Send) -> Reply | None:
    if (cancel := send.cancel) is None:
        return await transport.send_async(line.http, line.server, send)
    asking = asyncio.ensure_future(transport.send_async(line.http, line.server, send))
    try:
        while not asking.done() and not cancel.is_set():
            await asyncio.wait([asking], timeout=CANCEL_CHECK_S)
        return asking.result() if asking.done() else None
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _send_in_turn_async(line: AsyncLine, send: Send) -> Reply | None:
    if line.slots.locked():
        if not await _turn(line, send):
            return None
    else:
        await line.slots.acquire()  # at once
    try:
        return await _send_async(line, send)
    finally:
        line.slots.release()


async def _turn(line: AsyncLine, send: Send) -> bool:
    """Whether its turn came before it was cancelled."""
    coming, end = asyncio.ensure_future(line.slots.acquire()), time.monotonic() + transport.patience_s(send)
    try:
        while not coming.done():
            if send.cancel is not None and send.cancel.is_set():
                return False
            if time.monotonic() > end:
                raise transport.no_connection(send)
            await asyncio.wait([coming], timeout=CANCEL_CHECK_S)
        return True
    except asyncio.CancelledError:
        if coming.done() and not coming.cancelled():
            line.slots.release()
        raise
    finally:
        if coming.cancel():
            await asyncio.gather(coming, return_exceptions=True)


async def _pause_async(wait: Wait) -> None:
    if wait.cancel is None:
        await asyncio.sleep(wait.seconds)
        return
    end = time.monotonic() + wait.seconds
    # Polled, because a flag of threads cannot wake an event loop.
    while not wait.cancel.is_set() and (left := end - time.monotonic()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, CANCEL_CHECK_S))


# -- both --------------------------------------------------------------------------------------------------------------


def _advance(call: Call[T], outcome: Any) -> Effect:
    return call.throw(outcome) if isinstance(outcome, SIEError) else call.send(outcome)


def _tell(listener: Listener, progress: Progress) -> None:
    if listener is not None:
        listener(progress)


def _teller(together: Together, listener: Listener) -> Listener:
    """What one of many reports, as the caller is told it."""
    if listener is None:
        return None
    told = listener
    return lambda progress: told(together.heard(progress))
