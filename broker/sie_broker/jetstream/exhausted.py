"""Finds work that used up its deliveries, and makes dead letters of it: otherwise it would lie in its queue unseen.

The server tells of each such work once, to whoever listens at that moment, so a sweep looks for what was missed. Any
number of processes may do this at once: every step is as good twice as once. What a dead letter is stands in
``deadletters``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerInfo

from sie_broker import clock, jobs, subjects
from sie_broker.contract import Bucket, DeadLetters, Payloads
from sie_broker.deadletters import Place, letter_of, queued_payload
from sie_broker.ending import cancelled
from sie_broker.jetstream.connection import translated, unsubscribe
from sie_broker.jetstream.deadletter_stream import remove
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.broker.exhausted")

ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.>"
QUEUE = "sie-exhausted"
SWEEP_S = 10.0
_PAGE = 256


class Advisory(msgspec.Struct, frozen=True):
    """``io.nats.jetstream.advisory.v1.max_deliver``, as far as it is read."""

    stream: str
    stream_seq: int
    deliveries: int


_advisories = msgspec.json.Decoder(Advisory)


class Burial:
    """Buries exhausted work until cancelled. ``sweep_s``: how often is looked for what no advisory told of."""

    def __init__(
        self, nc: Client, dead: DeadLetters, bucket: Bucket, payloads: Payloads, sweep_s: float = SWEEP_S
    ) -> None:
        self._nc = nc
        self._js = nc.jetstream(timeout=5)
        self._dead = dead
        self._jobs = bucket
        self._payloads = payloads
        self._sweep_s = sweep_s
        self._suspected: set[Place] = set()

    async def run(self) -> None:
        """Listen and sweep."""
        told: asyncio.Queue[Place] = asyncio.Queue()

        async def on_advisory(message: Msg) -> None:
            advisory = _advisories.decode(message.data)
            if subjects.is_work_stream(advisory.stream):
                told.put_nowait(Place(advisory.stream, advisory.stream_seq, advisory.deliveries))

        with translated():
            subscription = await self._nc.subscribe(ADVISORY, queue=QUEUE, cb=on_advisory)
        next_sweep = 0.0
        try:
            while not cancelled():
                try:
                    async with asyncio.timeout(max(0.0, next_sweep - time.monotonic())):
                        place = await told.get()
                except TimeoutError:
                    await self._sweep()
                    next_sweep = time.monotonic() + self._sweep_s
                else:
                    await self._bury(place)
        finally:
            await unsubscribe(self._nc, subscription)

    async def _bury(self, place: Place) -> None:
        try:
            await self.bury(place)
        except SIEError as error:
            log.warning("work %d of %s stays until the next sweep: %s", place.sequence, place.stream, error)

    async def bury(self, place: Place) -> None:
        """Move one work to the dead letters, unless it was answered and only its acknowledgement was lost.

        Raises:
            QueueUnavailableError: the broker does not answer; the work is where it was.
        """
        with translated():
            try:
                message = await self._js.get_msg(place.stream, seq=place.sequence)
            except nats.js.errors.NotFoundError:
                return
        accepted = (message.time or datetime.now(UTC)).timestamp()
        letter = letter_of(
            message.subject or "",
            message.headers or {},
            message.data or b"",
            place=place,
            accepted=accepted,
            now=clock.now(),
        )
        if await jobs.result(self._jobs, letter.id) is None:
            log.warning("work %s is a dead letter after %d deliveries", letter.id, letter.deliveries)
            await self._dead.bury(letter, place.sequence)
        await remove(self._js, place.stream, place.sequence)
        if (payload := queued_payload(letter)) is not None:
            await self._payloads.drop(payload)

    async def _sweep(self) -> None:
        """Bury what was seen in two sweeps: what was seen once may be work whose acknowledgement is on its way."""
        try:
            seen = {place async for place in self.lying()}
        except SIEError as error:
            log.warning("the queues were not swept: %s", error)
            return
        again, self._suspected = seen & self._suspected, seen
        for place in again:
            await self._bury(place)

    async def lying(self) -> AsyncIterator[Place]:
        """What lies in the queues, and their consumers do not count."""
        with translated():
            listed = await self._nc.request("$JS.API.STREAM.NAMES", b'{"subject": "sie.work.>"}', timeout=5)
            for stream in msgspec.json.decode(listed.data).get("streams") or ():
                info = await self._js.stream_info(stream, subjects_filter=f"{subjects.WORK}.>")
                stored = info.state.subjects or {}
                async for consumer in self._consumers(stream):
                    counted = (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
                    if stored.get(consumer.config.filter_subject or "", 0) > counted:
                        async for sequence in self._below(stream, consumer):
                            yield Place(stream, sequence, consumer.config.max_deliver or 0)

    async def _consumers(self, stream: str) -> AsyncIterator[ConsumerInfo]:
        offset = 0
        while page := await self._js.consumers_info(stream, offset):
            for consumer in page:
                yield consumer
            offset += len(page)
            if len(page) < _PAGE:
                return

    async def _below(self, stream: str, consumer: ConsumerInfo) -> AsyncIterator[int]:
        """Sequences of the consumer's stored messages that it has done with.

        Everything up to its floor is; all that it ever delivered is, when it waits for no acknowledgement.
        """
        done = consumer.ack_floor if consumer.num_ack_pending else consumer.delivered
        last, sequence = (0 if done is None else done.stream_seq), 0
        while sequence < last:
            try:
                found = await self._js.get_msg(
                    stream, seq=sequence + 1, subject=consumer.config.filter_subject, next=True
                )
            except nats.js.errors.NotFoundError:
                return
            sequence = found.seq or last
            if sequence <= last:
                yield sequence
