"""The executor: one thread per device that runs forwards back to back; while one batch runs, the next gathers.

Owns the queue in front of the device and who gets which result or error. What goes together is ``batch``; what a
forward does is the model's. No timers: a lone request starts at once, and whatever came meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sie_bundle.batch import Entry, Slice, form
from sie_bundle.tokenization import Row
from sie_sdk.errors import DeadlineExceededError, InferenceError, UnavailableError

log = logging.getLogger("sie.bundle.executor")

Vectors = npt.NDArray[np.float32]


class Model(Protocol):
    """What the executor needs of a model: vectors [n, dim] for n rows. Equal models may share a batch."""

    def forward(self, rows: Sequence[Row]) -> Vectors: ...


class Forwarded(NamedTuple):
    """The vectors of one request, and when it was queued, first started and last ended (``time.monotonic()``)."""

    vectors: Vectors
    """[n, dim] float32, in the order of the rows."""
    queued: float
    started: float
    ended: float


class _Request(Entry, frozen=True, eq=False, kw_only=True):
    """An entry with its rows and its caller. ``done``: the batches that computed parts of it so far."""

    model: Model
    rows: Sequence[Row]
    queued: float
    answer: Future[Forwarded]
    done: list[Forwarded]

    def fail(self, error: Exception) -> None:
        """Answer with an error; a caller that has left, or was answered already, does not hear it."""
        with suppress(InvalidStateError):
            self.answer.set_exception(error)

    def complete(self) -> None:
        """Answer with the vectors of all parts."""
        vectors = np.concatenate([part.vectors for part in self.done]) if len(self.done) > 1 else self.done[0].vectors
        with suppress(InvalidStateError):
            self.answer.set_result(Forwarded(vectors, self.queued, self.done[0].started, self.done[-1].ended))


class Executor:
    """One device's thread.

    Args:
        max_batch_tokens: the ceiling of one batch.
        threads: of one forward pass; None: torch's own choice.
    """

    def __init__(self, max_batch_tokens: int = 16_384, threads: int | None = None) -> None:
        self.texts_computed = 0
        self.batches = 0
        self._ceiling = max_batch_tokens
        self._threads = threads
        self._queue: list[Slice] = []
        self._changed = threading.Condition()
        self._closing = False
        # A daemon: a process that must end now does not wait for a forward pass.
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    async def forward(self, model: Model, rows: Sequence[Row], *, deadline: float | None = None) -> Forwarded:
        """Compute ``rows`` (at least one) with ``model``. Cancelling the call drops what has not started.

        Args:
            deadline: seconds since the epoch after which nobody wants the answer.

        Raises:
            InferenceError: an output is not finite; names the item. Other requests of the batch are unaffected.
            DeadlineExceededError: the deadline passed while it was queued.
            UnavailableError: the executor is closed.
        """
        answer: Future[Forwarded] = Future()
        request = _Request(
            key=id(model),
            lengths=tuple(len(row) for row in rows),
            deadline=deadline,
            gone=answer.done,
            model=model,
            rows=rows,
            queued=time.monotonic(),
            answer=answer,
            done=[],
        )
        with self._changed:
            if self._closing:
                raise UnavailableError("This worker is leaving.", retry_after=1.0)
            self._queue.append(Slice(request, 0, len(rows)))
            self._changed.notify()
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Refuse new work, finish what is queued and end the thread. Blocks until then."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._limit_threads()
                self._compute(batch)

    def _next(self) -> list[Slice] | None:
        """Wait for work and form a batch; None when closing and nothing is left."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            batch, self._queue, dropped = form(self._queue, time.time(), self._ceiling)
        for part in dropped:
            _request(part).fail(DeadlineExceededError("The deadline passed while the request waited for the device."))
        return batch

    def _limit_threads(self) -> None:
        """Once, with the first batch: by then torch is imported, and an idle executor does not need it."""
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
            self._threads = None

    def _compute(self, batch: list[Slice]) -> None:
        """Run one forward pass and give each request its part, or find out alone whose fault a failure is."""
        started = time.monotonic()
        rows = [row for part in batch for row in _request(part).rows[part.start : part.stop]]
        try:
            vectors = _request(batch[0]).model.forward(rows)
            if len(vectors) != len(rows):
                raise RuntimeError(f"The model gave {len(vectors)} vectors for {len(rows)} rows.")
        except Exception as error:
            if len(batch) == 1:
                return _request(batch[0]).fail(error)
            log.warning("a batch of %d requests failed (%s); each goes alone", len(batch), error)
            for part in batch:
                self._compute([part])
            return None
        ended = time.monotonic()
        self.batches += 1
        self.texts_computed += len(rows)
        at = 0
        for part in batch:
            size = part.stop - part.start
            _settle(part, Forwarded(vectors[at : at + size], _request(part).queued, started, ended))
            at += size
        return None


def _request(part: Slice) -> _Request:
    assert isinstance(part.entry, _Request)
    return part.entry


def _settle(part: Slice, done: Forwarded) -> None:
    """Note a request's part of a batch; the last part answers it, a vector that is not finite fails it alone."""
    request = _request(part)
    finite = np.isfinite(done.vectors).all(axis=1)
    if not finite.all():
        item = part.start + int(np.argmin(finite))
        return request.fail(
            InferenceError(
                "The model's output for this item is not finite.",
                field=f"items[{item}]",
                hint="Leave this item out; the model cannot represent it.",
            )
        )
    request.done.append(done)
    return request.complete() if part.stop == len(request.rows) else None
