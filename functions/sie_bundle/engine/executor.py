"""The executor: one device's threads that run forwards back to back; while one batch runs, the next gathers.

Owns the queue in front of the device and who gets which result or error. What goes together is ``batch``; what a
forward does is the model's. A lone request starts at once, and whatever came meanwhile is the next batch, for which a
stream that has answered several waits a moment (``gathering``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from sie_broker import clock
from sie_bundle.engine import cores
from sie_bundle.engine.batch import Limits, Slice, form
from sie_bundle.engine.cores import Cores
from sie_bundle.engine.cost import Reading
from sie_bundle.engine.failure import frameless, is_out_of_memory, said, tellable
from sie_bundle.engine.gathering import Gathering, awaited, patience_s
from sie_bundle.engine.outputs import Outputs, all_finite
from sie_bundle.engine.request import Forwarded, Model, Outcome, Request, gather, is_last, request_of
from sie_bundle.engine.row import Row
from sie_sdk.errors import DeadlineExceededError, InferenceError, OutOfMemoryError, SIEError, UnavailableError

log = logging.getLogger("sie.bundle.executor")

LATE = "The deadline passed while the request waited for the device."
TOO_LARGE = "The device has not the memory for this item now."
LEAVING = "This worker is leaving."
BESIDE = "Something beside the model's pass failed."


class _Failed(NamedTuple):
    """Why a pass gave nothing, and where: the error has no frames any more (`frameless`)."""

    trace: str
    error: Exception


class Executor:
    """One device's threads.

    Args:
        max_batch_tokens: the most tokens of one batch, for the memory they take.
        max_batch_s: the most seconds a batch may be expected to take, for those who wait behind it.
        few_tokens: batches of more are to be quick (`cost.Fit.ceiling`); a stream beside others begins with so many.
        streams: forwards at a time. A CPU of several cores serves small batches best with one core for each.
        threads: of one forward pass; None: torch's own choice.
        alone: threads of a pass beside which there is nothing to do; None: as many as of any other.
        count: the cores that passes share with the event loop; None: there are enough for all streams.
        loading: whether a model is being loaded on the same cores.
        free: returns memory of the device that nobody uses to it, after a forward pass ran out of it.
        relieve: lets go of something for the next try; returns whether there was anything.
        sound: whether the device still computes; asked when a pass has failed. Where it does not, nothing is tried
            again: whoever waits is told that this worker leaves, which others do not.
    """

    def __init__(
        self,
        max_batch_tokens: int = 16_384,
        max_batch_s: float = float("inf"),
        few_tokens: float = float("inf"),
        streams: int = 1,
        threads: int | None = None,
        alone: int | None = None,
        count: int | None = None,
        loading: Callable[[], bool] = lambda: False,
        free: Callable[[], None] = lambda: None,
        relieve: Callable[[], bool] = lambda: False,
        sound: Callable[[], bool] = lambda: True,
    ) -> None:
        self.texts_computed = 0
        self.batches = 0
        self.running = 0
        """Forward passes now."""
        self.lost = Future[None]()
        """Fails when the device, or a thread of it, is lost for good: this worker is to leave."""
        self.lost.set_running_or_notify_cancel()  # no longer cancelled by whoever stops waiting
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_s = max_batch_s
        self._few_tokens = few_tokens
        self._cores = Cores(threads, alone, count)
        self._loading = loading
        self._free = free
        self._relieve = relieve
        self._sound = sound
        self._queue: list[Slice] = []
        self.waiting_tokens = 0
        """Tokens queued in front of the device."""
        self._bulk_led = float("-inf")
        self._lock = threading.RLock()
        self._idle: list[threading.Condition] = []
        """Streams without work; the one behind is woken first."""
        self._gathering = Gathering(self._lock)
        self._in_passes = 0
        """Requests, or slices of some, that are computed now."""
        self._settling = threading.Lock()
        self._closing = False
        # Daemons: a process that must end now does not wait for a forward pass.
        self._streams = [
            threading.Thread(target=self._run, args=(number == 0,), name=f"device-{number}", daemon=True)
            for number in range(streams)
        ]
        for stream in self._streams:
            stream.start()

    async def forward(
        self,
        model: Model,
        rows: Sequence[Row],
        heads: Sequence[str],
        *,
        deadline: float | None = None,
        bulk: bool = False,
    ) -> Forwarded:
        """Compute ``rows`` (at least one) with ``model``. Cancelling the call drops what has not started.

        Args:
            heads: of the model, for every row.
            deadline: seconds since the epoch after which nobody wants the answer.
            bulk: let interactive requests go first (`batch.form` says how far).

        Raises:
            InferenceError: an output is not finite; ``details`` have its ``row``. Other requests are unaffected.
            OutOfMemoryError: the device has not the memory for a single row.
            DeadlineExceededError: the deadline passed while it was queued.
            UnavailableError: this worker leaves: the executor is closed, or the device is lost.
        """
        answer: asyncio.Future[Forwarded] = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        request = Request(
            key=id(model),
            lengths=tuple(len(row) for row in rows),
            deadline=None if deadline is None else now + deadline - clock.now(),
            gone=answer.done,  # asked by the device's threads; it only reads a field that the event loop sets
            bulk=bulk,
            queued=now,
            model=model,
            rows=rows,
            heads=tuple(heads),
            answer=answer,
            done={},
        )
        with self._lock:
            if self._closing:
                raise UnavailableError(LEAVING, retry_after=1.0)
            self._cores.attended(time.thread_time(), now)
            self._queue.append(Slice(request, 0, len(rows)))
            self.waiting_tokens += request.tokens
            self._gathering.tell(len(self._queue))
            self._wake()
        try:
            return await answer
        finally:
            del answer, request  # an error holds on to this frame, and so to the model, which must not be for long

    def close(self, within_s: float = threading.TIMEOUT_MAX) -> None:
        """Refuse new work, finish what is queued and end the threads. Blocks until then, so many seconds at most."""
        until = time.monotonic() + within_s
        self._refuse()
        for stream in self._streams:
            stream.join(max(0.0, until - time.monotonic()))

    def _refuse(self) -> None:
        """Take nothing more in, and wake all streams."""
        with self._lock:
            self._closing = True
            while self._idle:
                self._wake()
            self._gathering.close()

    def _run(self, leads: bool) -> None:
        """One stream, until the end. The one that ``leads`` takes whatever comes while all are idle (``cores``)."""
        threads: int | None = None
        batch: list[Slice] = []
        took_s = 0.0
        try:
            while (formed := self._next(leads, batch, took_s)) is not None:
                if batch := formed:
                    began = time.monotonic()
                    threads = self._pass(batch, leads, threads)
                    took_s = time.monotonic() - began
        except BaseException as error:
            log.critical("the device is lost, and this worker leaves", exc_info=error)
            self._give_up(batch, frameless(tellable(error)))

    def _pass(self, batch: list[Slice], leads: bool, threads: int | None) -> int | None:
        """One forward pass, whatever happens around it; returns on how many threads. This one had ``threads``.

        Raises:
            BaseException: what failed, if the device is not sound.
        """
        try:
            beside = self.running - 1 + len(self._queue) + self._loading()
            wanted = self._cores.of_pass(leads=leads, beside=beside, now=time.monotonic())
            if wanted != threads:
                cores.take(wanted)  # not before the first batch: an idle executor does not need torch
                threads = wanted
            self._compute(batch, leads, threads)
        except BaseException:
            if not self._sound():
                raise
            log.exception("a batch of %d requests failed beside its pass", len(batch))
            self._tell([(request_of(part), InferenceError(BESIDE, hint="See this worker's log.")) for part in batch])
        return threads

    def _give_up(self, batch: list[Slice], error: Exception) -> None:
        """Leave what this stream has and what is queued to other workers."""
        self._refuse()
        with self._lock:
            queue = list(self._queue)
            self._leave([], queue)
            if not self.lost.done():
                self.lost.set_exception(error)
        self._tell([(request_of(part), UnavailableError(LEAVING, retry_after=1.0)) for part in (*batch, *queue)])

    def _next(self, leads: bool, before: list[Slice], took_s: float) -> list[Slice] | None:
        """Wait for work and form a batch; None when closing and nothing is left.

        Args:
            leads: see `_run`.
            before: the batch of the pass that has ended, if any, which took ``took_s``.
        """
        with self._lock:
            if before:
                self.running -= 1
                self._in_passes -= len(before)
                answered = sum(map(is_last, before))
                before.clear()  # an idle stream keeps no request, and so no model that was let go, alive
                self._await_share(answered, took_s)
            while not self._closing and not (self._queue and self._may_start()):
                idle = threading.Condition(self._lock)
                self._idle.insert(len(self._idle) if leads else 0, idle)
                idle.wait()
            if not self._queue:
                return None
            now = time.monotonic()
            batch, rest, dropped = form(self._queue, now, self._limits, self._bulk_led)
            self._leave(rest, [*batch, *dropped])
            if batch:
                self.running += 1
                self._in_passes += len(batch)
                if batch[0].entry.bulk:
                    self._bulk_led = now
            if rest:
                self._wake()  # another stream may take what is left
        if dropped:
            self._tell([(request_of(part), DeadlineExceededError(LATE)) for part in dropped])
        return batch

    def _leave(self, rest: list[Slice], gone: Sequence[Slice]) -> None:
        """Part the queue. Counted are those that go, which are few: what stays may be hundreds of thousands of rows."""
        self._queue = rest
        self.waiting_tokens -= sum(part.tokens for part in gone)

    def _may_start(self) -> bool:
        """Whether one pass more is worth a core: there is none, or a full batch for it, or a core with nothing to do.

        Else the event loop has to share a core with it, and what little is queued is done sooner, and together with
        more, after the pass that runs.
        """
        taken = self.running + self._gathering.streams
        return not taken or self._cores.left(taken) or self._fill_a_batch()

    def _wake(self) -> None:
        if self._idle and (self._closing or self._may_start()):
            self._idle.pop().notify()

    def _await_share(self, answered: int, took_s: float) -> None:
        """Wait a moment for callers who come back, unless what is queued fills a batch (``gathering``)."""
        streams = len(self._streams) if self._cores.left(self.running + 1) else self.running + 1
        expected = awaited(answered, self._in_passes, len(self._queue), streams)
        if not expected or (self._queue and self._fill_a_batch()):
            return
        self._gathering.wait(expected, patience_s(took_s))

    def _fill_a_batch(self) -> bool:
        """Whether the tokens queued, of which there are some, are as many as a batch may have."""
        limits = self._limits(self._queue[0])
        return self.waiting_tokens >= min(limits.ceiling, limits.tokens, self._few_tokens)

    def _limits(self, leader: Slice) -> Limits:
        fit = request_of(leader).model.fit
        return Limits(fit.ceiling(self._max_batch_s, self._few_tokens), fit.quadratic, self._max_batch_tokens)

    def _compute(
        self, batch: list[Slice], leads: bool = False, threads: int | None = None, freed: bool = False
    ) -> None:
        """Run one forward pass and give each request its part, or find out alone whose fault a failure is.

        ``leads``: see `_run`; on so many ``threads``. ``freed``: memory was freed for these already.
        """
        started = time.monotonic()
        rows, wanted = gather(batch)
        model = request_of(batch[0]).model
        if isinstance(computed := _passed(model, rows, wanted), _Failed):
            return self._recover(batch, computed, freed)
        ended = time.monotonic()
        finite = all_finite(computed)
        outcomes: list[Outcome] = []
        with self._settling:
            self.batches += 1
            self.texts_computed += len(rows)
            at = dict.fromkeys(computed, 0)
            for part in batch:
                own, request = {}, request_of(part)
                for head in request.heads:
                    own[head] = computed[head][at[head] : at[head] + part.stop - part.start]
                    at[head] += part.stop - part.start
                done = Forwarded(own, request.queued, started, ended)
                if (outcome := request.outcome(part, done, finite=finite)) is not None:
                    outcomes.append((request, outcome))
        self._tell(outcomes)
        # Last, for nobody waits for what is learned of it.
        read = Reading(sum(part.tokens for part in batch), sum(part.squares for part in batch), ended - started)
        if leads and model.fit.known:
            self._cores.took(threads, read.seconds, model.fit.expected(read), ended)
        if threads in (None, self._cores.usual):
            model.fit.observe(read)
        return None

    def _recover(self, batch: list[Slice], failed: _Failed, freed: bool) -> None:
        """Out of memory: free what is unused, then what is idle, then halve. Any other failure: each request alone.

        Raises:
            Exception: what it failed with, if the device is not sound.
        """
        if not self._sound():
            log.error("a pass failed, and with it the device:\n%s", failed.trace)
            raise failed.error
        if not (batch := [part for part in batch if not part.entry.gone()]):
            return None
        if exhausted := is_out_of_memory(failed.error):
            if not freed:
                self._free()
            if not freed or self._relieve():
                return self._compute(batch, freed=True)
        if len(batch) == 1 and exhausted and batch[0].stop - batch[0].start > 1:
            part = batch[0]
            middle = (part.start + part.stop) // 2
            log.warning("out of memory with %d rows; halved", part.stop - part.start)
            self._compute([part._replace(stop=middle)], freed=True)
            return self._compute([part._replace(start=middle)], freed=True)
        if len(batch) == 1:
            failure = OutOfMemoryError(TOO_LARGE, retry_after=5.0) if exhausted else failed.error
            if not isinstance(failure, SIEError):
                log.error("a pass failed:\n%s", failed.trace)
            return self._tell([(request_of(batch[0]), failure)])
        todo = "halved" if exhausted else "each alone"
        log.warning("a batch of %d requests failed (%s); %s", len(batch), said(failed.error), todo)
        middle = len(batch) // 2
        for some in [batch[:middle], batch[middle:]] if exhausted else [[part] for part in batch]:
            self._compute(some, freed=exhausted)
        return None

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        """Answer callers, all with one wake of their event loop, and compute nothing more of what has failed."""
        if failed := {request for request, outcome in outcomes if isinstance(outcome, Exception)}:
            with self._lock:
                gone = [part for part in self._queue if part.entry in failed]
                self._leave([part for part in self._queue if part.entry not in failed], gone)
        for loop, own in groupby(outcomes, key=lambda each: each[0].answer.get_loop()):
            with suppress(RuntimeError):  # it is closed: nobody waits there any more
                loop.call_soon_threadsafe(_answer, list(own))


def _passed(model: Model, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> Mapping[str, Outputs] | _Failed:
    """A forward pass, or why there was none."""
    try:
        computed = model.forward(rows, wanted)
        for head, texts in wanted.items():
            if len(computed[head]) != len(texts):
                raise RuntimeError(f"The model gave {len(computed[head])} {head} outputs for {len(texts)} rows.")
    except BaseException as error:  # whatever an adapter raises, the thread stays
        return _Failed("".join(traceback.format_exception(error)).rstrip(), frameless(tellable(error)))
    return computed


def _answer(outcomes: Sequence[Outcome]) -> None:
    """On the event loop: hand out results and errors; a caller that has left, or has its answer, hears nothing."""
    for request, outcome in outcomes:
        if request.answer.done():
            continue
        if isinstance(outcome, Exception):
            request.answer.set_exception(outcome)
        else:
            request.answer.set_result(outcome)
