"""How much one tenant may have in flight at this ingress: counted from the first look at a request to its answer.

Owns the counts and the refusal. A request that became a job goes on counting until its answer was given out here, its
lane was seen without waiting work, or it is too old to be answered; repeated meanwhile, it counts once. What a queue
holds at most, whoever sent it, is the stream's own limit (``sie_broker.jetstream.streams``).
"""

from __future__ import annotations

from collections import Counter
from typing import Self

import msgspec

from sie_broker.jobs import LIFETIME_S, Job
from sie_broker.records import Lane
from sie_sdk.errors import RateLimitedError


class _Queued(msgspec.Struct, frozen=True):
    tenant: str
    lane: Lane
    works: int
    accepted: float


class Ticket:
    """One admitted request, for as long as it is entered. ``becomes``: the job it has turned into, if it has.

    ``counted``: its works, or 0 if its job counts.
    """

    def __init__(self, admission: Admission, tenant: str, works: int, now: float) -> None:
        self.becomes: Job | None = None
        self.tenant = tenant
        self.works = self.counted = works
        self.at = now
        self._admission = admission

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.leave(self)


class Admission:
    """``limit``: works a tenant may have in flight, 0 for no limit. Requests without a tenant are one tenant."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight: Counter[str] = Counter()
        self._queued: dict[str, _Queued] = {}

    def admit(self, tenant: str, works: int, now: float, job_id: str = "") -> Ticket:
        """Count ``works`` for ``tenant`` until the ticket is left, and on if the request has become a job by then.

        A request larger than the whole limit is let in when nothing else of its tenant is in flight; one that is the
        repeat of a job that counts (``job_id``) always is.

        Raises:
            RateLimitedError: the tenant has as much in flight as it may have.
        """
        ticket = Ticket(self, tenant, works, now)
        if not self._limit:
            return ticket
        self._forget_older(now - LIFETIME_S)
        if job_id in self._queued:
            ticket.counted = 0
            return ticket
        taken = self._in_flight[tenant]
        if taken and taken + works > self._limit:
            raise RateLimitedError(
                f"{f'Tenant {tenant}' if tenant else 'Whoever sends no X-SIE-Tenant'} has {taken} requests in flight.",
                field="X-SIE-Tenant",
                limit=self._limit,
                retry_after=1.0,
                hint="Wait for some of them, or ask for a higher limit.",
            )
        self._in_flight[tenant] += works
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The request was answered, or has become a job."""
        if not self._limit:
            return
        if (job := ticket.becomes) is None or job.id in self._queued:
            self._release(ticket.tenant, ticket.counted)
        else:
            self._in_flight[ticket.tenant] += ticket.works - ticket.counted
            self._queued[job.id] = _Queued(ticket.tenant, job.lane, ticket.works, ticket.at)

    def answered(self, job_id: str) -> None:
        """A job's answer was fetched, or given to a repeat of its request."""
        if (queued := self._queued.pop(job_id, None)) is not None:
            self._release(queued.tenant, queued.works)

    def drained(self, lane: Lane, at: float) -> None:
        """Nothing waited in ``lane`` at ``at`` (seconds since the epoch): its older jobs are done."""
        for job_id in [job for job, queued in self._queued.items() if queued.lane == lane and queued.accepted < at]:
            self.answered(job_id)

    def _forget_older(self, than: float) -> None:
        # In order of acceptance, so it ends at the first that is young enough.
        while self._queued and (oldest := next(iter(self._queued.items())))[1].accepted < than:
            self.answered(oldest[0])

    def _release(self, tenant: str, works: int) -> None:
        self._in_flight[tenant] -= works
        if self._in_flight[tenant] <= 0:
            del self._in_flight[tenant]
