"""From a call's first request to its last reply: follow the job of a 202, try again or give up.

Owns when that happens and what is told meanwhile. Not here: what is asked for (``calls``), sockets, clocks that tick,
threads, event loops (``drivers``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from sie_sdk import refusals, results
from sie_sdk.effects import Call, Patience, Reply, Report, Send, Wait
from sie_sdk.errors import (
    CancelledByCallerError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    NotFoundError,
    ProvisioningError,
    ProvisioningFailedError,
    QueueUnavailableError,
    RateLimitedError,
    SIEError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedReplyError,
)
from sie_sdk.types import JobStatus, Progress

T = TypeVar("T")

_chance = random.Random()
"""Our own: a program that seeds ``random`` draws the same numbers whatever is tried again meanwhile."""

RETRY_AFTER_S = 1.0
"""The pause when a server names none."""

HOLD_S = 20
"""How long a server is asked to hold a look at a job; well below what proxies cut."""

HOLD_IF_CANCELLABLE_S = 1
"""The same for a call with ``cancel``, so that it soon has a job that can be named when it is cancelled."""

BEFORE_THE_END = 0.9
"""Of the time that is left, the part a server may hold a request, so that there is some to hear of its job."""

GRACE_S = 10.0
"""How much longer than the asked hold a reply may take, if there is so much time left."""


def settle(request: Send, patience: Patience, *, items: int | None = None, until_queued: bool = False) -> Call[Reply]:
    """Send ``request`` until it has a final reply: follow the job of a 202, try again on 503, 429 and no connection.

    ``items``: how many it asks for, to be told when they are done; None for what is not told. ``until_queued``: a 202
    is final too.

    Raises:
        SIEError: the server's final error, or with ``wait_for_capacity=False`` its first "not now".
        DeadlineExceededError: ``deadline_s`` passed; a queued job stays queued and is named.
        CancelledByCallerError: ``cancel`` was set; likewise.
        UnexpectedReplyError: a reply does not follow the protocol.
    """
    return _Errand(request, patience, items, until_queued=until_queued).run()


def follow(job: str, look: Send, patience: Patience, *, items: int = 0) -> Call[Reply]:
    """The final reply of a job of ``items``, queued before; ``look`` asks for it. Raises as :func:`settle`."""
    return _Errand(look, patience, items, job=job).run()


def is_of_the_server(error: SIEError) -> bool:
    """Whether a job's look failed because it was not answered; any other error is what became of the job."""
    # Their subclasses may be a job's own outcome: a worker had no memory for it, or could not load the model in time.
    return type(error) in _OF_THE_SERVER


_OF_THE_SERVER = (
    UnavailableError,
    QueueUnavailableError,
    ProvisioningFailedError,
    # Of whoever stands before it, a gateway that knows the caller no more, for instance.
    RateLimitedError,
    UnauthorizedError,
    ForbiddenError,
    NotFoundError,
)


def still_queued(id: str, error: SIEError) -> JobStatus | None:
    """How a job stands whose look failed with ``error`` because no worker comes; None for any other reason."""
    if isinstance(error, ProvisioningFailedError):
        return JobStatus(id, "queued", error.retry_after, error.message)
    return None


class _Errand:
    """The state of one :func:`settle`: when it began, the job it follows and what it last heard."""

    def __init__(
        self,
        request: Send,
        patience: Patience,
        items: int | None = None,
        *,
        until_queued: bool = False,
        job: str | None = None,
    ) -> None:
        self.request = request
        self.patience = patience
        self.items = items
        self.until_queued = until_queued
        self.attached = self.following = job is not None
        self.sent = patience.now()
        self.started = self.sent if patience.started is None else patience.started
        self.job = job
        self.location = request.path if job else ""
        self.heard = f"job {job}" if job else "the first reply"
        self.timed_out = False
        self.way_out = self._longer

    def run(self) -> Call[Reply]:
        while True:
            self._stop_if_cancelled()
            try:
                reply: Reply | None = yield self._next_request()
            except ConnectionFailedError as error:
                yield from self._pause_after(error, "unreachable")
                continue
            if reply is None:
                continue  # cancelled
            if reply.status == 202 and not self.until_queued:
                yield from self._follow(reply)
            elif 200 <= reply.status < 300:
                if self.items is not None:
                    yield self._report("done")
                return reply
            else:
                refusal = refusals.read_error(reply.status, reply.headers, reply.body)
                refusal.request_id = reply.request_id
                if not isinstance(refusal, UnavailableError) or (self.attached and not is_of_the_server(refusal)):
                    raise refusal
                # A job's result too may be an error that passes; the request itself, repeated, has it done anew.
                self.following = self.attached
                yield from self._pause_after(refusal, "retrying")

    def _next_request(self) -> Send:
        remaining = self._remaining()
        if remaining <= 0:
            raise self._too_late()
        self.sent = self.patience.now()
        if not self.following:
            headers = self.request.headers | self._preference(remaining)
            timeout_s = min(self.request.timeout_s, remaining)
            return msgspec.structs.replace(
                self.request, headers=headers, timeout_s=timeout_s, cancel=self.patience.cancel, patience_s=remaining
            )
        longest = HOLD_S if self.patience.cancel is None else HOLD_IF_CANCELLABLE_S
        hold = min(longest, remaining * BEFORE_THE_END)
        headers = {
            name: value
            for name, value in self.request.headers.items()
            if name not in ("Content-Type", "Idempotency-Key")
        }
        headers["Prefer"] = f"wait={hold:.3g}"
        timeout_s = min(hold + GRACE_S, remaining)
        return Send("GET", self.location, headers, None, timeout_s, self.patience.cancel, remaining)

    def _preference(self, remaining: float) -> dict[str, str]:
        """How long work may be held before it becomes a job, for those who cannot wait: a job can be left, and named.

        Others leave it to the server, which tells them at once when nothing is up yet.
        """
        if self.items is None or "Prefer" in self.request.headers:
            return {}
        if self.patience.cancel is not None:
            return {"Prefer": f"wait={min(HOLD_IF_CANCELLABLE_S, remaining * BEFORE_THE_END):.3g}"}
        return {"Prefer": f"wait={remaining * BEFORE_THE_END:.3g}"} if remaining < HOLD_S else {}

    def _follow(self, reply: Reply) -> Call[None]:
        job = read(reply, results.read_job)
        pause = refusals.parse_retry_after(reply.headers.get("retry-after")) or job.retry_after_s or RETRY_AFTER_S
        # Only the path of Location is used: the API key goes to no other host, and base_url may have a prefix.
        location = urlsplit(reply.headers.get("location", "")).path or f"/v1/jobs/{quote(job.id, safe='')}"
        if not self.patience.wait_for_capacity:
            raise ProvisioningError(
                job.message or "No worker is up yet; the work is queued.",
                hint="Pass wait_for_capacity=True to wait for the result.",
                retry_after=pause,
                request_id=reply.request_id,
                job=job.id,
                location=location,
            )
        accepted_now = not self.following
        self.job, self.location, self.following = job.id, location, True
        self.heard, self.way_out = f"job {job.id} ({job.message or job.state})", self._longer
        if "preference-applied" in reply.headers:
            # The server held the request, which was the waiting; the floor is for one that only says so.
            pause = min(pause, RETRY_AFTER_S) - (self.patience.now() - self.sent)
        yield self._report(job.state, pause if pause > 0 else None, job.message)
        # The first look comes at once and asks to be held: an answer that is early is not waited past.
        if pause > 0 and not accepted_now:
            yield self._wait(pause)

    def _pause_after(self, error: SIEError, state: str) -> Call[None]:
        self.heard, self.way_out = error.message, self._way_out(error)
        if self._remaining() <= 0:
            raise self._too_late() from error
        if not self.patience.wait_for_capacity:
            error.hint = self.way_out if self.timed_out else error.hint
            raise error
        # Jitter, so that the callers a restart turned away do not all come back together.
        pause = (error.retry_after or RETRY_AFTER_S) * _chance.uniform(1.0, 1.1)
        yield self._report(state, pause, error.message)
        yield self._wait(pause)

    def _wait(self, seconds: float) -> Wait:
        return Wait(max(0.0, min(seconds, self._remaining())), self.patience.cancel)

    def _report(self, state: str, retry_after_s: float | None = None, message: str | None = None) -> Report:
        elapsed_s, done = self.patience.now() - self.started, (self.items or 0) if state == "done" else 0
        return Report(Progress(state, self.job, elapsed_s, retry_after_s, message, done, self.items or None))

    def _remaining(self) -> float:
        return self.started + self.patience.deadline_s - self.patience.now()

    def _stop_if_cancelled(self) -> None:
        if self.patience.cancel is not None and self.patience.cancel.is_set():
            raise CancelledByCallerError(f"The call was cancelled.{self._stays_queued()}", **self._about())

    def _too_late(self) -> DeadlineExceededError:
        deadline, bound, heard = self.patience.deadline_s, self.patience.bound, self.heard.rstrip(".")
        return DeadlineExceededError(
            f"No result within the deadline of {deadline:g} s; the last news was: {heard}.{self._stays_queued()}",
            field=bound,
            limit=deadline,
            hint=self.way_out,
            **self._about(),
        )

    @property
    def _longer(self) -> str:
        return f"Pass a larger {self.patience.bound} than {self.patience.deadline_s:g}."

    def _way_out(self, error: SIEError) -> str:
        """What helps against an error that lasts: more time, but not where nobody is there to answer.

        Nor where each request had less than its answer takes; the last one had only what was left of the deadline.
        """
        if isinstance(error, ConnectionFailedError) and error.limit is None and error.hint:
            return error.hint
        if isinstance(error, ConnectionFailedError) and error.hint is None and not self.following:
            self.timed_out |= error.limit == self.request.timeout_s
            if self.timed_out:
                return f"Make the client with a larger timeout_s than {self.request.timeout_s:g}."
        return f"{error.hint} {self._longer}" if error.hint else self._longer

    def _stays_queued(self) -> str:
        return f" The work stays queued as job {self.job}." if self.job else ""

    def _about(self) -> dict[str, Any]:
        request_id = {"request_id": self.request.headers["X-Request-ID"]}
        return request_id | ({"job": self.job, "location": self.location} if self.job else {})


def read(reply: Reply, reader: Callable[[bytes, str | None], T]) -> T:
    """The body of a reply by ``reader(body, content_type)``; an unexpected one says which request and status it was."""
    try:
        return reader(reply.body, reply.content_type)
    except UnexpectedReplyError as error:
        error.request_id = reply.request_id
        error.details["http_status"] = reply.status
        raise
