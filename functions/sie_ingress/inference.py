"""``POST /v1/encode|score|extract/{model}``: parse, resolve, check, submit, answer. The first half of a request's way.

Owns the order of these steps and what published clients get instead of a 202. Nothing is computed. The body travels on
as the bytes that came, or in parts, so that it is parsed once at each end. What differs between the three stands in
``operations``. Requests that come as events (``event_requests``) or in another's dialect (``dialects``) take the same
way from `Inference.check` on.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sie_broker import clock
from sie_broker.jobs import Job
from sie_broker.merge import part_id
from sie_broker.records import Reply, Work
from sie_config.model.model_spec import ModelSpec
from sie_config.model.profile import with_profile
from sie_config.registry import Registry
from sie_ingress import answer, caller, memory, parts, published
from sie_ingress.admission import Admission
from sie_ingress.answer import Answers
from sie_ingress.asked_again import AskedAgain
from sie_ingress.beside import beside
from sie_ingress.body import read_body
from sie_ingress.headers import by_name
from sie_ingress.identity import trace_of, works_on
from sie_ingress.lanes import Lanes
from sie_ingress.operations import CHECKS
from sie_ingress.pools import Pools
from sie_ingress.settings import Settings
from sie_ingress.submit import Holds, Submitter, job_id
from sie_ingress.terms import Terms, read_terms
from sie_ingress.trace_context import Trace
from sie_sdk import wire
from sie_sdk.errors import DeadlineExceededError, ProvisioningError, QueueFullError, RateLimitedError
from sie_sdk.types import Operation


class Parsed(NamedTuple):
    """What a request asks for."""

    request: wire.Request
    body: bytes = b""
    """The same in msgpack, if it came as that."""


class Asked(NamedTuple):
    """One request, parsed but not yet held against its model."""

    operation: Operation
    spec: ModelSpec
    parsed: Parsed
    terms: Terms
    id: str
    """The job's."""
    accepted: float
    """Seconds since the epoch."""
    headers: Mapping[str, str]
    """Those of its HTTP request, or what stands for them: they may name a pool."""
    trace: Trace | None = None
    cause: str | None = None
    reply_to: str | None = None
    etag: str = ""
    """Of the spec as it was when the name was resolved; empty: just now."""


class Checked(NamedTuple):
    """A request that can be served. Of all that was read, only the works hold its data."""

    whole: Work
    """All but the data."""
    works: list[Work]
    """It, or its parts."""
    sizes: list[int]
    """Items of each."""


class Inference:
    """The three inference routes, and the way of every request from its check to its answer or job."""

    def __init__(
        self,
        registry: Registry,
        lanes: Lanes,
        pools: Pools,
        admission: Admission,
        submitter: Submitter,
        answers: Answers,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._lanes = lanes
        self._pools = pools
        self._admission = admission
        self._submitter = submitter
        self._answers = answers
        self._settings = settings
        self._asked_again = AskedAgain()
        self.limits = wire.Limits(
            max_items=settings.max_items,
            max_text_bytes=settings.max_text_bytes,
            max_score_items=min(settings.max_items, wire.DEFAULT_LIMITS.max_score_items),
        )

    async def serve(self, operation: Operation, request: Request) -> Response:
        """One request of ``operation``, from its body to its answer."""
        accepted = clock.now()
        headers = by_name(request.scope)
        terms = read_terms(headers, accepted)
        held = answer.prefer_wait(headers.get("prefer"), self._settings.request_timeout_s)
        honoured = answer.waited(held)
        if held is None and answer.prefers_job(headers.get("prefer")):
            held, honoured = 0.0, "respond-async"
        spec = self._registry.resolve(request.path_params["model"])
        etag = self._registry.etag(spec.id)
        media = wire.body_type(headers.get("content-type"))
        key = headers.get("idempotency-key")
        own_id = job_id(key, terms.tenant) if key else os.urandom(16).hex()
        works_on(request.scope, own_id)
        trace = trace_of(request.scope)
        # In no variable: a large body is not to stay until the answer.
        parsing = self.parse(operation, await read_body(request, self._settings.max_body_bytes), media)
        checked = await self.check(
            Asked(operation, spec, await parsing, terms, own_id, accepted, headers, trace, etag=etag)
        )
        # `Prefer: wait=0` asks for a job, even where the answer is known already.
        warm_s = self._settings.request_timeout_s if held is None else held
        take, waits = memory.of(request.scope).take, caller.of(request.receive, key)
        holds = Holds(warm_s, held or 0.0, key, answers=held != 0, queued_anyway=held == 0, take=take, caller=waits)
        if published.asks(request.scope):
            outcome: Reply | Job = await self._place_published(checked, holds)
        else:
            outcome = await self._place_again(checked, holds)
        if isinstance(outcome, Job):
            if not holds.queued_anyway and (given_up := self._lanes.given_up(outcome.lane, outcome.id)) is not None:
                raise given_up
            retry_after, late_s = await self._lanes.retry_after(outcome.lane), await self._lanes.late_s(outcome.lane)
            return answer.from_job(outcome, retry_after, honoured, late_s)
        return await self._answers.from_reply(outcome, headers.get("accept"), headers.get("content-type"))

    async def parse(self, operation: Operation, body: bytes, media: wire.MediaType) -> Parsed:
        """A body of our own protocol; a large one is read beside the event loop.

        Raises:
            InvalidInputError: it is no request of this operation.
        """
        read = partial(wire.PARSERS[operation], body, media, limits=self.limits)
        request = await beside(len(body), read)
        return Parsed(request, body if media == wire.MSGPACK else b"")

    async def check(self, asked: Asked) -> Checked:
        """Look into a request; nothing is accepted yet.

        Raises:
            InvalidInputError: it can never succeed as it is.
            UnavailableError: its pool is not ready.
        """
        request, body = asked.parsed
        if (wanted := with_profile(request, asked.spec)) is not request:
            body = b""
        CHECKS[asked.operation](wanted, asked.spec)
        split = parts.split(wanted, asked.spec)
        whole = Work(
            id=asked.id,
            op=asked.operation,
            lane=await self._pools.lane(asked.headers, asked.spec),
            model=asked.spec.id,
            data=b"",
            time=asked.accepted,
            reply_to=asked.reply_to,
            traceparent=asked.trace and asked.trace.parent,
            tracestate=asked.trace and asked.trace.state,
            deadline=asked.terms.deadline,
            priority=asked.terms.priority_of(len(split)),
            tenant=asked.terms.tenant,
            cause=asked.cause,
            spec=asked.etag or self._registry.etag(asked.spec.id),
        )
        sizes = [len(part.items) for part in split]
        if len(split) == 1:
            data = body or wire.request_body(split[0])
            return Checked(whole, [msgspec.structs.replace(whole, data=data)], sizes)
        del body
        asked = asked._replace(parsed=Parsed(request))  # makes room for the parts
        works = [
            msgspec.structs.replace(whole, id=part_id(whole.id, number), data=wire.request_body(part))
            for number, part in enumerate(split)
        ]
        return Checked(whole, works, sizes)

    async def _place_published(self, checked: Checked, holds: Holds) -> Reply:
        """Published clients take a 202 for success: while cold nothing is queued, and what outlives its hold is let go.

        Raises:
            ProvisioningError, DeadlineExceededError: they send it again.
            ProvisioningFailedError: they do not.
        """
        lane = checked.whole.lane
        if not self._lanes.live(lane):
            self._submitter.warm_up(lane)
            if (given_up := self._lanes.given_up(lane)) is not None:
                raise given_up
            raise ProvisioningError("No worker is up yet.", retry_after=await self._lanes.look_again_s(lane))
        reply = await self.answered(checked, holds._replace(warm_s=min(holds.warm_s, published.HELD_S)))
        if reply is None:
            raise published.let_go(self._submitter.leaving)
        return reply

    async def answered(self, checked: Checked, holds: Holds) -> Reply | None:
        """As `place`, for callers that cannot follow a job: None when they are to ask again, and the work goes on.

        The same request asked again is the same job: by its key, or without one by what it asks (``asked_again``).
        """
        outcome = await self._place_again(checked, holds, lets_go=True)
        return outcome if isinstance(outcome, Reply) else None

    async def _place_again(self, checked: Checked, holds: Holds, *, lets_go: bool = False) -> Reply | Job:
        def place(whole: Work, works: list[Work], holds: Holds) -> Awaitable[Reply | Job]:
            return self.place(Checked(whole, works, checked.sizes), holds)

        return await self._asked_again.place(checked.whole, checked.works, holds, place, lets_go=lets_go)

    async def place(self, checked: Checked, holds: Holds) -> Reply | Job:
        """Submit what its tenant may submit; the answer, or the job it has become.

        Raises:
            IdempotencyMismatchError: its id was used for a different request.
            RateLimitedError, QueueFullError, QueueUnavailableError: not all of it was accepted.
            ProvisioningFailedError: its lane's workers are given up.
            DeadlineExceededError: its time was over while it was held.
            CancelledByCallerError: its caller has hung up.
        """
        whole, works, sizes = checked
        if whole.deadline is not None:
            left = whole.deadline - whole.time
            holds = holds._replace(warm_s=min(holds.warm_s, left), cold_s=min(holds.cold_s, left))
        try:
            with self._admission.admit(whole.tenant, len(works), whole.time, whole.id) as ticket:
                outcome = await self._submitter.place(works, holds, sizes, whole.id)
                if isinstance(outcome, Job):
                    ticket.becomes = outcome
                else:
                    self._admission.answered(whole.id)
        except (RateLimitedError, QueueFullError) as refused:
            refused.retry_after = await self._lanes.retry_after(whole.lane)
            raise
        if isinstance(outcome, Job) and whole.deadline is not None and clock.now() >= whole.deadline:
            raise DeadlineExceededError("The answer did not come before the request expired.", field="X-SIE-Expires-In")
        return outcome
