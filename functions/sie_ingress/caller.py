"""Who waits for the answer to one request, and whether it still does.

Owns the watching of its connection, and that the work of one that has hung up is withdrawn: with no key nobody else
can ask for its answer, and a caller that sends the request again has it computed behind what others wait for. Requests
with an ``Idempotency-Key`` are not watched: their repeat finds the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from starlette.types import Receive

from sie_broker import jobs
from sie_broker.contract import Broker
from sie_broker.records import Work
from sie_sdk.errors import CancelledByCallerError, QueueUnavailableError

WATCHED_AFTER_S = 0.05
"""Most requests are answered by then, and are spared a task of their own. Who has left before is noticed then."""


class Caller:
    """Who sent a request whose body has been read with ``receive``; None: whoever it is, it is not watched."""

    def __init__(self, receive: Receive | None) -> None:
        self.left = False
        """It has hung up."""
        self._receive = receive
        self._waking: list[Callable[[], object]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the context is open it is noticed when the caller leaves; once for each caller."""
        if (receive := self._receive) is None:
            yield
            return
        watching: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal watching
            watching = asyncio.create_task(self._watch(receive))

        soon = asyncio.get_running_loop().call_later(WATCHED_AFTER_S, begin)
        try:
            yield
        finally:
            soon.cancel()
            if watching is not None:
                watching.cancel()

    def on_left(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` when it leaves, or at once if it has."""
        if self._receive is None:
            return
        self._waking.append(wake)
        if self.left:
            wake()

    async def withdraw_if_left(self, broker: Broker, work: Work, sequence: int) -> None:
        """Take back the work it has left, and the job that this may be; while the broker is away it is left there.

        Raises:
            CancelledByCallerError: it has.
        """
        if self.left:
            with suppress(QueueUnavailableError):
                await broker.withdraw(work, sequence)
                await jobs.forget(broker.jobs, work.id)
            raise CancelledByCallerError("The caller hung up.")

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left = True
        for wake in self._waking:
            wake()


ANYBODY = Caller(None)
"""A caller that may come again and ask for the answer, or that is none of HTTP."""


def of(receive: Receive, key: str | None) -> Caller:
    """The caller of a request with this ``Idempotency-Key``, by which it and others may ask for its answer later."""
    return Caller(receive if key is None else None)
