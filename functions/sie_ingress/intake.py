"""Events that producers put on NATS: taken from their queue, checked, placed, and only then acknowledged.

Owns what becomes of an event here, where nobody waits for an answer: what cannot be served is answered at its sink and
at its job, what cannot be served now waits. Any number of ingresses share the queue; one that dies leaves its events to
the others, and an event that was placed twice is one job. What an event is stands in ``event_requests``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Literal

from cloudevents.core.v1.event import CloudEvent

from sie_broker import clock, deadletters, jobs, subjects
from sie_broker.contract import Broker, Room
from sie_broker.events import binding, exchange, sinks
from sie_broker.events.sinks import Sink
from sie_broker.parcel import Parcel, work_off
from sie_broker.records import MAX_DELIVERIES, DeadLetter, Reply
from sie_ingress import trace_context
from sie_ingress.beside import beside
from sie_ingress.event_requests import LONGEST_ID, EventRequests, job_of
from sie_sdk import wire
from sie_sdk.errors import IdempotencyMismatchError, InvalidInputError, SIEError, UnavailableError
from sie_sdk.refusals import error_body

log = logging.getLogger("sie.ingress.intake")

IN_HAND = 64
LONGEST_PAUSE_S = 30.0


class Intake:
    """Takes events until it is cancelled. ``arrivals(room)``: their queue."""

    def __init__(
        self, broker: Broker, arrivals: Callable[[Room], AsyncGenerator[Parcel, None]], requests: EventRequests
    ) -> None:
        self._broker = broker
        self._arrivals = arrivals
        self._requests = requests

    async def run(self) -> None:
        """Take what arrives, and place it."""
        await work_off(self._arrivals, self._take, IN_HAND)

    async def _take(self, parcel: Parcel) -> None:
        """Settle an event. One that this cannot do, which nobody thought of, would come again for ever."""
        try:
            await self._settle(parcel)
        except UnavailableError:
            raise  # the broker is away, or has no room
        except Exception as fault:
            if parcel.attempt < MAX_DELIVERIES:
                raise
            log.exception("event %d is given up after %d deliveries", parcel.sequence, parcel.attempt)
            await self._bury(parcel, "exhausted", f"{type(fault).__name__}: {fault}")
            await parcel.term("exhausted")

    async def _settle(self, parcel: Parcel) -> None:
        try:
            event = await beside(len(parcel.data), partial(binding.from_nats, parcel.headers, parcel.data))
        except InvalidInputError as fault:
            # It is no event, so it has neither job nor sink: an operator may look at it.
            log.warning("what came on %s is no event: %s", parcel.subject, fault)
            await self._bury(parcel, "malformed", fault.message)
            await parcel.term(fault.code)
            return
        try:
            wanted = await self._requests.check(event, clock.now(), binding.prefix(parcel.headers))
            await self._requests.place(wanted)
        except UnavailableError as later:
            asked = later.retry_after or 1.0
            await parcel.nak(min(LONGEST_PAUSE_S, max(asked, 0.5 * parcel.attempt)) * random.uniform(0.8, 1.2))
            return
        except SIEError as error:
            await self._refuse(event, error)
            await parcel.term(error.code)
            return
        await parcel.ack()

    async def _refuse(self, event: CloudEvent, error: SIEError) -> None:
        """Let the event's job say why there is no result, and its sink, if it has one that is allowed."""
        log.info("event %.80s of %.80s is refused: %s", event.get_id(), event.get_source(), error)
        own_id = job_of(event, exchange.extension(event, "tenant"))
        if isinstance(error, IdempotencyMismatchError) or await jobs.find(self._broker.jobs, own_id) is not None:
            return  # the job is that of an event which came before, and keeps its result
        cause = event.get_id() if len(event.get_id()) <= LONGEST_ID else None
        reply = Reply(id=own_id, data=error_body(error), status=error.status, cause=cause)
        to = exchange.extension(event, "replyto")
        try:
            self._requests.allowed.check(to)
        except InvalidInputError:
            await self._broker.deliver_reply(None, reply)
            return
        trace = trace_context.read([exchange.extension(event, "traceparent")])
        sink = Sink(to=to, media=wire.JSON, traceparent=trace and trace.parent)
        await sinks.keep(self._broker.sinks, own_id, sink)
        await self._broker.deliver_reply(subjects.sink(own_id), reply)

    async def _bury(self, parcel: Parcel, reason: Literal["exhausted", "malformed"], fault: str) -> None:
        letter = DeadLetter(
            id=f"event-{parcel.sequence}",
            reason=reason,
            subject=parcel.subject,
            headers=deadletters.event_headers(parcel.headers),
            at=clock.now(),
            accepted=parcel.at,
            deliveries=parcel.attempt,
            size=len(parcel.data),
            fault=fault,
            data=parcel.data,
        )
        await self._broker.dead.bury(letter, parcel.sequence)
