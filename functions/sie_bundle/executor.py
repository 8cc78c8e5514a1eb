"""The executor: one thread per device that runs forwards back to back; while one batch runs, the next gathers.

Owns the queue in front of the device and who gets which result or error. What goes together is ``batch``; what a
forward does is the model's. No timers: a lone request starts at once. It touches an event loop only to wake a caller.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from sie_bundle.batch import Entry, Slice, form
from sie_bundle.tokenization import Row
from sie_config.model_spec import ModelSpec
from sie_sdk.errors import DeadlineExceededError, InferenceError, SIEError

log = logging.getLogger("sie.bundle.executor")

Vectors = npt.NDArray[np.float32]


class Model(Protocol):
    """What the executor needs of a model."""

    @property
    def spec(self) -> ModelSpec: ...
    def forward(self, rows: Sequence[Row]) -> Vectors: ...


class Forwarded(NamedTuple):
    """Vectors ``[n, dim]`` in the rows' order, and ``time.monotonic()`` when queued, first started and last ended."""

    vectors: Vectors
    queued: float
    started: float
    ended: float


class _Ticket(msgspec.Struct, eq=False):
    """A caller's entry while it is queued or computed."""

    entry: Entry
    model: Model
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Forwarded]
    parts: list[Vectors] = msgspec.field(default_factory=list)
    started: float = 0.0


class Executor:
    """Runs forwards. ``max_batch_tokens``: a batch's ceiling; ``threads``: of one forward, None: torch's own choice."""

    def __init__(self, max_batch_tokens: int = 16_384, threads: int | None = None) -> None:
        self.texts_computed = 0
        self.batches = 0
        self._ceiling = max_batch_tokens
        self._torch_threads = threads
        self._queue: list[Entry] = []
        self._tickets: dict[int, _Ticket] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    async def forward(self, model: Model, rows: list[Row], *, deadline: float | None = None) -> Forwarded:
        """Compute ``rows``. Cancelling drops what has not started. ``deadline``: seconds since the epoch.

        Raises:
            InferenceError: an output is not finite; names the item. Other callers of the batch are unaffected.
            DeadlineExceededError: the deadline passed while it was queued.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Forwarded] = loop.create_future()
        entry = Entry(model.spec.id, rows, time.monotonic(), future.cancelled, deadline)
        with self._changed:
            self._tickets[id(entry)] = _Ticket(entry, model, loop, future)
            self._queue.append(entry)
            self._changed.notify()
        return await future

    def close(self) -> None:
        """Finish what is queued and end the thread. Blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        if self._torch_threads is not None:
            import torch

            torch.set_num_threads(self._torch_threads)
        while (batch := self._next()) is not None:
            if batch:
                self._compute(batch)

    def _next(self) -> list[Slice] | None:
        """The next batch; None when closing and nothing is left."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            formed = form(self._queue, time.time(), self._ceiling)
            self._queue = formed.queue
        for entry in formed.dropped:
            self._fail(entry, DeadlineExceededError("The deadline passed while the request waited for the device."))
        return formed.batch

    def _compute(self, batch: list[Slice]) -> None:
        started = time.monotonic()
        model = self._tickets[id(batch[0].entry)].model
        try:
            vectors = model.forward([row for part in batch for row in part.rows])
        except Exception as error:
            self._blame(batch, error)
            return
        ended = time.monotonic()
        self.batches += 1
        self.texts_computed += len(vectors)
        finite: npt.NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(vectors), axis=1)
        at = 0
        for part in batch:
            rows = slice(at, at := at + part.stop - part.start)
            self._settle(part, vectors[rows], finite[rows], started, ended)

    def _blame(self, batch: list[Slice], error: Exception) -> None:
        """A forward failed: compute each caller's part alone, so that only the one at fault is told."""
        if len(batch) > 1:
            for part in batch:
                if id(part.entry) in self._tickets:
                    self._compute([part])
            return
        log.error("a forward pass failed", exc_info=error)
        known = error if isinstance(error, SIEError) else InferenceError("The forward pass failed.")
        self._fail(batch[0].entry, known)

    def _settle(
        self, part: Slice, vectors: Vectors, finite: npt.NDArray[np.bool_], started: float, ended: float
    ) -> None:
        """Give a caller its part of a batch; the last part completes it."""
        if (ticket := self._tickets.get(id(part.entry))) is None:
            return  # failed with an earlier slice
        if not finite.all():
            self._fail(part.entry, _not_finite(part.start + int(np.argmin(finite))))
            return
        ticket.started = ticket.started or started
        ticket.parts.append(vectors)
        if part.stop == len(part.entry.rows):
            del self._tickets[id(part.entry)]
            whole = vectors if len(ticket.parts) == 1 else np.concatenate(ticket.parts)
            self._wake(ticket, Forwarded(whole, part.entry.queued, ticket.started, ended))

    def _fail(self, entry: Entry, error: SIEError) -> None:
        with self._changed:
            self._queue = [waiting for waiting in self._queue if waiting is not entry]
        if (ticket := self._tickets.pop(id(entry), None)) is not None:
            self._wake(ticket, error)

    def _wake(self, ticket: _Ticket, outcome: Forwarded | SIEError) -> None:
        def tell() -> None:
            if ticket.future.done():
                return  # the caller has left
            if isinstance(outcome, SIEError):
                ticket.future.set_exception(outcome)
            else:
                ticket.future.set_result(outcome)

        try:
            ticket.loop.call_soon_threadsafe(tell)
        except RuntimeError:
            log.info("a caller's event loop is closed; its result is dropped")


def _not_finite(item: int) -> InferenceError:
    return InferenceError(
        f"The model's output for item {item} is not finite.",
        field=f"items[{item}]",
        hint="Leave this item out; the model cannot represent it.",
    )
