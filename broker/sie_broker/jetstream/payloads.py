"""`Payloads` on JetStream: a payload is some messages in a stream, written and read a few at a time.

Owns the pace. nats-py's own object store reads through an ordered push consumer and needs 0.5 s for 8 MiB; direct gets
in parallel take 10 ms. All payloads of a process share `IN_FLIGHT` pieces on the way, so that a large one lets other
messages through on the same connection. Not here: references and lifetimes (``claim``), the streams (``streams``).
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import nats.js.errors
from nats.aio.client import Client

from sie_broker import claim, subjects
from sie_broker.claim import Reference
from sie_broker.contract import Store
from sie_broker.jetstream.connection import translated
from sie_sdk.errors import InvalidInputError, QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.broker.payloads")

IN_FLIGHT = 8
"""With 4 of 512 KiB on the way two cores are busy already; the rest is for payloads that come together."""
TIMEOUT_S = 5.0
"""For one piece, or for dropping all of them."""


class NatsPayloads:
    """The stores of the server that ``nc`` is connected to."""

    def __init__(self, nc: Client) -> None:
        self._js = nc.jetstream(timeout=TIMEOUT_S)
        self._turns = asyncio.Semaphore(IN_FLIGHT)
        self._ending: set[asyncio.Task[None]] = set()

    async def store(self, store: Store, owner: str, data: bytes) -> str:
        reference = await claim.refer(store, owner, data)

        async def put(number: int) -> None:
            start = number * reference.chunk
            await self._js.publish(_subject(reference, number), data[start : start + reference.chunk])

        try:
            with translated():
                await self._each(reference.chunks, put, undo=lambda: self.drop(str(reference)))
        except QueueFullError as full:
            raise QueueFullError(
                f"There is no room for {len(data)} bytes among the large payloads ({claim.STREAMS[store]}) now.",
                retry_after=5.0,
                hint="Try again later, or send less at once.",
            ) from full
        return str(reference)

    async def load(self, dataref: str) -> bytes:
        reference = claim.parse(dataref)
        # Written at their places as they come, and handed out without a copy.
        whole = io.BytesIO()

        async def get(number: int) -> None:
            piece = await self._get(reference, number)
            if len(piece) != reference.length(number):
                raise claim.lost(reference, "came back damaged")
            whole.seek(number * reference.chunk)
            whole.write(piece)

        with translated():
            await self._each(reference.chunks, get)
        return await claim.verified(reference, whole.getvalue())

    async def _get(self, reference: Reference, number: int) -> bytes:
        stream, subject = claim.STREAMS[reference.store], _subject(reference, number)
        try:
            message = await self._js.get_last_msg(stream, subject, direct=True)
        except nats.js.errors.NotFoundError:
            # A replica that lags has not got it yet; the leader has.
            try:
                message = await self._js.get_last_msg(stream, subject)
            except nats.js.errors.NotFoundError:
                raise claim.lost(reference, "is no longer stored") from None
        return message.data or b""

    async def drop(self, dataref: str) -> None:
        try:
            reference = claim.parse(dataref)
            with translated():
                await self._js.purge_stream(claim.STREAMS[reference.store], subject=_subject(reference, "*"))
        except (QueueUnavailableError, InvalidInputError) as error:
            log.warning("%s was not dropped and stays until it expires: %s", dataref, error)

    async def _each(
        self, chunks: int, step: Callable[[int], Awaitable[None]], undo: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Take the step for every piece, some at a time; the first failure ends them all, then comes ``undo``."""
        left = deque(range(chunks))

        async def some() -> None:
            while left:
                number = left.popleft()
                async with self._turns:
                    await step(number)

        async def end() -> None:
            # Nothing is cut short: the server could store a piece after what undoes it.
            await asyncio.gather(*tasks, return_exceptions=True)
            if undo is not None:
                await undo()

        tasks = [asyncio.create_task(some()) for _ in range(min(chunks, IN_FLIGHT))]
        try:
            if tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        except BaseException:
            left.clear()
            ending = asyncio.create_task(end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            raise


def _subject(reference: Reference, number: int | str) -> str:
    return subjects.payload(claim.STREAMS[reference.store], reference.owner, reference.id, number)
