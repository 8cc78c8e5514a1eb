"""A CloudEvent as a request: read, checked and placed, by whatever way it came.

Owns the identity of an event, which is its job's, and where its result goes. Not here: HTTP (``events``), NATS
(``intake``), and what every request goes through (``inference``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from cloudevents.core.v1.event import CloudEvent

from sie_broker import subjects
from sie_broker.contract import Broker
from sie_broker.events import exchange, sinks
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import Sink
from sie_broker.jobs import Job
from sie_broker.records import Reply
from sie_config.registry import Registry
from sie_ingress import trace_context
from sie_ingress.inference import Asked, Checked, Inference
from sie_ingress.memory import uncounted
from sie_ingress.submit import Holds
from sie_ingress.terms import event_terms
from sie_ingress.trace_context import Trace
from sie_sdk.errors import IdempotencyMismatchError, InvalidInputError, NotFoundError, PayloadTooLargeError, SIEError
from sie_sdk.wire import MediaType

LONGEST_ID = 256
"""Characters of an event's id: it goes along with the work and with the answer, in a header of each."""


def job_of(event: CloudEvent, tenant: str) -> str:
    """The job of an event: what makes it the same event sent again, its source and id, each tenant's its own.

    The first 32 hex digits of the SHA-256 of the three with a line feed between them, so that whoever sends events
    where nobody answers (NATS) can know their jobs. No attribute holds a line feed.
    """
    return hashlib.sha256(f"{tenant}\n{event.get_source()}\n{event.get_id()}".encode()).hexdigest()[:32]


class Wanted(NamedTuple):
    """An event that can be served."""

    checked: Checked
    media: MediaType
    """The format of its data."""
    cause: str
    """The event's id."""
    sink: Sink | None

    @property
    def job(self) -> str:
        """Its job's id."""
        return self.checked.whole.id


class EventRequests:
    """Checks and places events. ``max_bytes``: the most data of one."""

    def __init__(
        self, broker: Broker, registry: Registry, inference: Inference, allowed: AllowList, max_bytes: int
    ) -> None:
        self._broker = broker
        self._registry = registry
        self._inference = inference
        self.allowed = allowed
        self._max_bytes = max_bytes

    async def check(
        self, event: CloudEvent, now: float, prefix: str = "", trace: Trace | None = None, reply_to: str = ""
    ) -> Wanted:
        """Look into an event that came at ``now``; nothing is accepted yet.

        Args:
            event: it.
            now: seconds since the epoch.
            prefix: goes before the names of its attributes in errors: ``ce-``, or ``[3].`` in a batch.
            trace: its request's; the event's own comes first.
            reply_to: where its result goes, when it does not say itself.

        Raises:
            InvalidInputError, NotFoundError, DeadlineExceededError: it can never succeed as it is; names what is wrong.
            UnavailableError: its pool is not ready.
        """
        if (length := len(event.get_id())) > LONGEST_ID:
            raise InvalidInputError(f"{prefix}id has {length} characters.", field=f"{prefix}id", limit=LONGEST_ID)
        asked = exchange.read(event, prefix)
        terms = event_terms(event, now, prefix)
        own_id = job_of(event, terms.tenant)
        own_to = exchange.extension(event, "replyto")
        if to := own_to or reply_to:
            self.allowed.check(to, f"{prefix if own_to else ''}replyto")
        pool = exchange.extension(event, "pool")
        own = trace_context.read([exchange.extension(event, "traceparent")], [exchange.extension(event, "tracestate")])
        trace = own or trace
        spec = self._registry.resolve(asked.model, f"{prefix}model")
        try:
            if len(asked.data) > self._max_bytes:
                raise _too_large(self._max_bytes)
            checked = await self._inference.check(
                Asked(
                    operation=asked.operation,
                    spec=spec,
                    parsed=await self._inference.parse(asked.operation, asked.data, asked.media),
                    terms=terms,
                    id=own_id,
                    accepted=now,
                    headers={"x-sie-pool": pool},
                    trace=trace,
                    cause=event.get_id(),
                    reply_to=subjects.sink(own_id) if to else None,
                )
            )
        except SIEError as error:
            error.field = _in_event(error, prefix)
            raise
        sizes = tuple(checked.sizes) if len(checked.sizes) > 1 else ()
        sink = Sink(to=to, media=asked.media, sizes=sizes, traceparent=trace and trace.parent) if to else None
        return Wanted(checked, asked.media, event.get_id(), sink)

    async def place(self, wanted: Wanted, hold_s: float = 0.0, take: Callable[[int], None] = uncounted) -> Reply | Job:
        """Accept an event: when this returns it is not lost. An event that was accepted before is the same job.

        With a sink nothing is held; unless ``hold_s`` is above 0, what is returned is a job. ``take``: as in `Holds`.

        Raises:
            IdempotencyMismatchError: an event of this source and id came before, and asked for something else.
            RateLimitedError, QueueFullError, QueueUnavailableError: not now; it may be sent again as it is.
            DeadlineExceededError: it expired while it was held.
        """
        if wanted.sink is not None:
            await sinks.keep(self._broker.sinks, wanted.job, wanted.sink)
            hold_s = 0.0
        try:
            # Senders of events do not wait: they would give the event up, or lose it.
            holds = Holds(hold_s, hold_s, wanted.cause, answers=hold_s > 0, queued_anyway=True, take=take)
            return await self._inference.place(wanted.checked, holds)
        except IdempotencyMismatchError:
            raise IdempotencyMismatchError(
                "An event of this source and id came before, and asked for something else.",
                field="id",
                hint="Give every event an id of its own; one that is sent again stays as it was.",
            ) from None
        except SIEError as error:
            error.field = _ATTRIBUTES.get(error.field or "", error.field)
            raise


_ATTRIBUTES = {"X-SIE-Tenant": "tenant", "X-SIE-Expires-In": "expirytime", "X-SIE-Pool": "pool"}
"""What events call what requests have headers for."""


def _in_event(error: SIEError, prefix: str) -> str | None:
    """Where in its event a request is at fault; the data's own paths stay as they are, but in a batch."""
    if isinstance(error, NotFoundError):
        return prefix + _ATTRIBUTES.get(error.field or "", error.field or "")
    in_batch = prefix.startswith("[") and isinstance(error, InvalidInputError) and error.field is not None
    return f"{prefix}data.{error.field}" if in_batch else error.field


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The event's data are over {limit} bytes.", field="data", limit=limit, hint="Send fewer items per event."
    )
