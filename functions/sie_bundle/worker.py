"""The worker: pull, compute, reply, ack. The second half of a request's way.

Owns the life of work in hand: one task per delivery, reply before ack, a bad input fails alone, drain with a deadline.
What is computed stands in ``encode``, whose turn it is in ``isolation``; how work is leased in ``sie_broker``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, closing, suppress
from functools import partial

from sie_broker import claim, clock, jobs
from sie_broker.contract import Broker, Delivery
from sie_broker.ending import cancelled
from sie_broker.records import Lane, Queue, Reply, Work
from sie_broker.room import Occupancy, Room
from sie_broker.subjects import is_sink
from sie_bundle.anteroom import Anteroom, Places
from sie_bundle.in_hand import InHand
from sie_bundle.isolation import SUSPECT, Isolation
from sie_bundle.pulls import Pulls
from sie_bundle.settings import MAX_REPLY_BYTES
from sie_config.registry import Registry
from sie_sdk import wire
from sie_sdk.errors import (
    DeadlineExceededError,
    InvalidInputError,
    ModelNotFoundError,
    PayloadLostError,
    PayloadTooLargeError,
    QueueFullError,
    QueueUnavailableError,
    SIEError,
    UnavailableError,
)

log = logging.getLogger("sie.bundle.worker")

UNKNOWN_S = 1.0
"""After so long work is given out once more whose model the ingress knows and this worker does not, or with which
something went wrong on the way to its computation."""
FULL_S = 60.0
"""The same of work for whose answer there was no room: what is kept ends all the time, but lives for an hour."""

Operation = Callable[[Work], Awaitable[bytes]]
"""Computes the reply body of one request; raises `SIEError` for what the caller should know."""


class Worker:
    """Serves a lane of the broker: that it was started in, or that of another pool it was given to.

    ``operations``: what to do per op; ``loaded``: the ids of the models that are loaded now; ``loading``: of those on
    their way in, which may be loaded too, in another version or with another LoRA.
    """

    def __init__(
        self,
        broker: Broker,
        registry: Registry,
        lane: Lane,
        name: str,
        operations: Mapping[str, Operation],
        loaded: Callable[[], Collection[str]],
        max_in_hand: int,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        loading: Callable[[], Collection[str]] = tuple,
    ) -> None:
        # Room of its own for each class: bulk work in hand keeps no interactive work waiting.
        self.full = Occupancy()
        places = {"interactive": max_in_hand, "bulk": max(1, max_in_hand // 2)}
        self._rooms = {priority: Room(most, self.full) for priority, most in places.items()}
        self._anterooms = {priority: Anteroom(most) for priority, most in places.items()}
        self.busy = Occupancy()
        self.completed = 0
        self._broker = broker
        self._name = name
        self._operations = operations
        self._loaded = loaded
        self._loading = loading
        self._max_reply_bytes = max_reply_bytes
        self._isolation = Isolation(broker.jobs)
        self._pulls = Pulls(broker, registry, lane, loaded, self._pull)
        self._in_hand = InHand()

    def start(self) -> None:
        """Pull what is wanted, from now on."""
        self._pulls.start()

    def update_pulls(self) -> None:
        """To be called after every change of the registry, and of what is loaded."""
        self._pulls.update()

    def move(self, pool: str) -> None:
        """Pull what waits for the same models in another pool; what is in hand is finished and answered as ever."""
        self._pulls.move(pool)

    @property
    def in_hand(self) -> int:
        """Requests taken from the queue and not answered yet."""
        return len(self._in_hand)

    async def drain(self, within_s: float) -> None:
        """Stop pulling, finish what is in hand; after ``within_s`` seconds the rest is left to be given back."""
        await self._pulls.close()
        await self._in_hand.drain(within_s)

    async def _pull(self, queue: Queue) -> None:
        def loaded() -> bool:
            return queue.model in self._loaded()

        def ready() -> bool:
            return queue.model not in self._loading() and loaded()

        def ended(room: Room) -> None:
            room.leave()
            self.busy.leave()

        with closing(Places(self._rooms[queue.priority], self._anterooms[queue.priority], ready)) as places:
            async with (
                self._broker.on_withdrawn(queue, self._in_hand.withdraw),
                aclosing(self._broker.pull(queue, places, lambda: 0 if loaded() else 5)) as deliveries,
            ):
                async for delivery in deliveries:
                    self._pulls.want(queue)
                    # Taken here and not by the task, which may run only after the next pull has looked for room.
                    (room := places.now).take()
                    self.busy.enter()
                    self._in_hand.begin(delivery.work.id, self._handle(delivery), partial(ended, room))

    async def _handle(self, delivery: Delivery) -> None:
        try:
            await self._in_hand.unless_withdrawn(delivery, self._settled)
        except QueueFullError as error:
            log.warning("work %s is given back, there is no room for its answer: %s", delivery.work.id, error)
            await _give_back(delivery, FULL_S)
        except Exception:  # left in hand, it would be renewed for as long as this worker lives, and answered by nobody
            log.exception("work %s is given back", delivery.work.id)
            await _give_back(delivery, UNKNOWN_S)

    async def _settled(self, delivery: Delivery) -> None:
        if delivery.attempt > 1 and await self._answered(delivery.work):
            await delivery.ack()
            return
        if await self._isolation.spared(delivery):
            return
        async with self._isolation.of(delivery):
            await self._serve(delivery)

    async def _serve(self, delivery: Delivery) -> None:
        reply, settle = await self._compute(delivery)
        if reply is not None:
            await self._reply(delivery, reply)
            self.completed += 1
        try:
            await settle()
        except QueueUnavailableError as error:
            log.warning("work %s was not settled and may come back: %s", delivery.work.id, error)

    async def _compute(self, delivery: Delivery) -> tuple[Reply | None, Callable[[], Awaitable[None]]]:
        """The reply, and how to settle the delivery after it was sent; no reply if others have sent one already."""
        work = delivery.work
        settle: Callable[[], Awaitable[None]] = delivery.ack
        try:
            data = await self.run(await self._redeem(work))
            if len(data) > self._max_reply_bytes:
                raise PayloadTooLargeError(
                    f"The answer takes {len(data)} bytes.",
                    field="items",
                    limit=self._max_reply_bytes,
                    hint="Ask for fewer items at once, or raise SIE_MAX_REPLY_BYTES.",
                )
            return Reply(id=work.id, data=data, worker=self._name, cause=work.cause), settle
        except SIEError as error:
            if isinstance(error, PayloadLostError) and await self._settled_elsewhere(delivery):
                return None, delivery.ack
            if isinstance(error, ModelNotFoundError) and work.spec and delivery.attempt == 1:
                log.warning("work %s is given back: %s is not known here", work.id, work.model)
                return None, partial(delivery.nak, UNKNOWN_S)
            if type(error) is UnavailableError and delivery.attempt < SUSPECT:
                # Others can. What came this often was computed alone, and may be why this one cannot: it is told.
                log.warning("work %s is given back: %s", work.id, error)
                return None, partial(delivery.nak, UNKNOWN_S)
            if isinstance(error, InvalidInputError | PayloadLostError):
                settle = partial(delivery.term, error.code)
            return self._failed(work, error), settle
        except Exception:
            return self._failed(work, unexpected(work)), settle

    def _failed(self, work: Work, failure: SIEError) -> Reply:
        data = wire.error_body(failure)
        return Reply(id=work.id, data=data, status=failure.status, worker=self._name, cause=work.cause)

    async def run(self, work: Work) -> bytes:
        """Compute one request, however it came: from the queue or by HTTP.

        Raises:
            SIEError: what the caller should know.
        """
        if work.deadline is not None and clock.now() > work.deadline:
            raise DeadlineExceededError("The deadline passed before a worker took the request.")
        if (operation := self._operations.get(work.op)) is None:
            raise InvalidInputError(f"This bundle does not do {work.op!r}.", field="type")
        return await operation(work)

    async def _answered(self, work: Work) -> bool:
        """A second delivery: the first worker may have got as far as keeping the result."""
        try:
            return await jobs.result(self._broker.jobs, work.id) is not None
        except QueueUnavailableError:
            return False

    async def _settled_elsewhere(self, delivery: Delivery) -> bool:
        """Whether this work is answered already: another had its lease, or a killed server forgot what it was told."""
        try:
            gone = not await self._broker.queued(delivery.work.lane, delivery.sequence)
        except QueueUnavailableError:
            return False
        return gone or await self._answered(delivery.work)

    async def _redeem(self, work: Work) -> Work:
        """The work with its data, however long the broker is away."""
        while True:
            try:
                return await claim.redeem(self._broker.payloads, work)
            except QueueUnavailableError as error:
                await _pause(f"the data of {work.id}", error)

    async def _reply(self, delivery: Delivery, reply: Reply) -> None:
        """Send the reply; while the broker is away keep it rather than compute it again.

        To hold it until there is room would keep everybody else's requests waiting: an error takes its place. Not at a
        sink, where room for one is as good as room for the answer, and whose caller can wait.

        Raises:
            QueueFullError: no room for the answer, nor for an error.
        """
        later = delivery.work.reply_to is not None and is_sink(delivery.work.reply_to)
        while True:
            try:
                return await delivery.reply(reply)
            except (QueueFullError, PayloadTooLargeError) as error:
                if reply.status >= 400 or (later and isinstance(error, QueueFullError)):
                    raise
                reply = self._failed(delivery.work, error)
            except QueueUnavailableError as error:
                await _pause(f"the reply {reply.id}", error)


def unexpected(work: Work) -> SIEError:
    """What a caller is told of the error that is handled now, which nobody expected; the log has the rest."""
    log.exception("work %s (%s, %s) failed", work.id, work.op, work.model)
    return SIEError("Something went wrong in the worker.", hint=f"Its log has the details under {work.id}.")


async def _give_back(delivery: Delivery, delay: float) -> None:
    with suppress(QueueUnavailableError):
        await delivery.nak(delay)


async def _pause(what: str, error: SIEError) -> None:
    log.warning("%s waits for the broker: %s", what, error)
    await asyncio.sleep(0.5)
    if cancelled():
        raise asyncio.CancelledError
