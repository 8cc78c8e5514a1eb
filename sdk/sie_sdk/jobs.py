"""Jobs: work that the server keeps while nobody waits for it, and the hand that its sender or anybody else has on it.

Owns how work becomes a job, how a job is looked at and waited for, and the classes :class:`Job` and :class:`AsyncJob`.
Not here: how its request is built and read (``calls``), the methods that make jobs (``job_methods``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from sie_sdk import calls, chunks, formats, refusals, results
from sie_sdk.calls import Order
from sie_sdk.chunks import Chunk, Tally
from sie_sdk.effects import Call, Cancel, Patience, Reply, Send, Together
from sie_sdk.errors import InvalidInputError, JobNotFoundError, SIEError, UnexpectedReplyError
from sie_sdk.settle import follow, is_of_the_server, read, settle, still_queued
from sie_sdk.types import Item, JobStatus, Operation, Progress

if TYPE_CHECKING:
    import httpx

    from sie_sdk.client import SIEAsyncClient, SIEClient

T = TypeVar("T")
Http = TypeVar("Http", bound="httpx.Client | httpx.AsyncClient")
Async: TypeAlias = Coroutine[Any, Any, T]
Blocking: TypeAlias = "AnyJob[httpx.Client, T]"
Awaited: TypeAlias = "AnyJob[httpx.AsyncClient, T]"

LOOK_S = 30.0
"""How long one look at a job may take."""

JOB_ITEMS = 1000
"""At most this many items in a job: what a request to score may hold, and its result fits the server's limit."""
JOB_BYTES = 4 * 1024 * 1024
"""At most this many characters and bytes of vectors, likewise."""
WIDTH = 8
"""Requests of one call that are under way at a time."""


def submit(order: Order, items: Sequence[Item | str]) -> Call[tuple[list[str], list[int]]]:
    """Have ``items`` queued, as one job or several; returns ids and numbers of items, and waits for no work.

    An error between several says which are queued: ``details["jobs"]`` are their ids, each with its ``[start, stop]``.
    """
    cut = chunks.cut(items, JOB_ITEMS, JOB_BYTES)
    sizes = [len(chunk.items) for chunk in cut]
    if len(cut) == 1:
        return [(yield from _queued(order, items))], sizes
    patience = msgspec.structs.replace(order.patience, started=order.patience.now())
    order = msgspec.structs.replace(order, patience=patience)
    accepted: dict[int, str] = {}

    def queue(chunk: Chunk) -> Call[str]:
        accepted[chunk.start] = yield from calls.part(order, chunk, _queued)
        return accepted[chunk.start]

    try:
        ids = yield Together(map(queue, cut), WIDTH, Tally(len(items), patience.now))
    except SIEError as error:
        queued = accepted.copy()  # at once: what is under way in other threads may still be accepted
        error.details["jobs"] = {queued[each.start]: [each.start, each.stop] for each in cut if each.start in queued}
        raise
    return ids, sizes


def _queued(order: Order, items: Sequence[Item | str]) -> Call[str]:
    send = calls.request(order, items)
    send = msgspec.structs.replace(send, headers=send.headers | {"Prefer": "wait=0"})
    reply: Reply = yield from settle(send, order.patience, until_queued=True)
    if reply.status != 202:
        raise UnexpectedReplyError(
            "The server computed the work at once instead of queueing it.",
            hint="Ask for the result itself, with encode, score or extract.",
            request_id=reply.request_id,
            http_status=reply.status,
        )
    return read(reply, results.read_job).id


def path(id: str) -> str:
    """Where the server has the job of this id.

    Raises:
        InvalidInputError: it can be none.
    """
    if not isinstance(id, str) or not id.strip() or id in (".", ".."):
        raise InvalidInputError(f"{id!r} is no job's id.", field="id", hint="Pass the id of a job that was submitted.")
    return "/v1/jobs/" + calls.escaped("id", id, safe="")


class AnyJob(Generic[Http, T]):
    """Queued work: look at it, or wait for its result. The server keeps both for an hour after it was accepted.

    It pickles, without its client: where it is unpickled it gets a client of its own to the same server, whose key is
    that process's ``SIE_API_KEY``. With other needs, keep ``id`` and attach with ``client.job(id, operation)``.
    """

    def __init__(
        self,
        client: SIEClient | SIEAsyncClient,
        id: str,
        operation: Operation,
        sizes: Sequence[int] = (),
        one: bool = False,
    ) -> None:
        self.id = id
        self.operation: Operation = operation
        self._client = client
        self._sizes = list(sizes)
        self._one = one
        self._parts = [_Part(each, operation) for each in (id.split(",") if isinstance(id, str) else [id])]
        for part, size, stop in zip(self._parts, self._sizes, accumulate(self._sizes), strict=False):
            part.asked = (stop - size, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        client = self._client
        return _unpickled, (type(self), client.base_url, client.tenant, self.id, self.operation, self._sizes, self._one)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.operation!r})"

    @overload
    def status(self: Blocking[T]) -> JobStatus: ...
    @overload
    def status(self: Awaited[T]) -> Async[JobStatus]: ...

    def status(self) -> Any:
        """How it stands now. ``state`` is ``queued``, then ``done`` or ``failed``, with ``message`` saying why.

        Raises:
            JobNotFoundError: there is none of that id, or not any more.
            ConnectionFailedError: the server could not be reached; one try is made.
        """
        return self._client._run(self._status())

    @overload
    def done(self: Blocking[T]) -> bool: ...
    @overload
    def done(self: Awaited[T]) -> Async[bool]: ...

    def done(self) -> Any:
        """Whether there is a result, or an error in its place. Raises as :meth:`status`."""
        return self._client._run(self._done())

    @overload
    def result(
        self: Blocking[T],
        *,
        deadline_s: float = ...,
        progress: Callable[[Progress], object] | None = ...,
        cancel: Cancel | None = ...,
    ) -> T: ...
    @overload
    def result(
        self: Awaited[T],
        *,
        deadline_s: float = ...,
        progress: Callable[[Progress], object] | None = ...,
        cancel: Cancel | None = ...,
    ) -> Async[T]: ...

    def result(
        self,
        *,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
    ) -> Any:
        """Wait for the result: what ``encode``, ``score`` or ``extract`` would have returned. It is kept here too.

        Args:
            deadline_s: seconds until this gives up; 0 only looks. The job goes on, and may be asked again.
            progress: called with a :class:`~sie_sdk.Progress` whenever the call begins to wait.
            cancel: a ``threading.Event``; setting it ends the wait, not the job.

        Raises:
            DeadlineExceededError: it was not there in time; ``error.details["job"]`` names the job.
            JobNotFoundError: there is none of that id, or not any more.
            ProvisioningFailedError: no worker comes to do it. It stays queued, and may be asked again.
            SIEError: what became of the work instead of a result.
        """
        return self._client._run(self._result(Patience(deadline_s=deadline_s, cancel=cancel)), progress)

    def _status(self) -> Call[JobStatus]:
        looks = [part.status() for part in self._parts if part.outcome is None]
        told: list[JobStatus] = [(yield from looks[0])] if len(looks) == 1 else (yield Together(looks, WIDTH, _as_told))
        left = [status for status in told if status.state not in ("done", "failed")]
        failed = next((part.outcome for part in self._parts if isinstance(part.outcome, SIEError)), None)
        if failed is not None:
            return JobStatus(self.id, "failed", message=failed.message)
        if not left:
            return JobStatus(self.id, "done")
        if len(self._parts) == 1:
            return left[0]
        message = f"{len(self._parts) - len(left)} of {len(self._parts)} jobs are done."
        return JobStatus(self.id, left[0].state, left[0].retry_after_s, message)

    def _done(self) -> Call[bool]:
        return (yield from self._status()).state in ("done", "failed")

    def _result(self, patience: Patience) -> Call[Any]:
        if len(self._parts) == 1:
            result = yield from self._parts[0].result(patience)
            return result[0] if self._one else result
        patience = msgspec.structs.replace(patience, started=patience.now())
        tally = Tally(sum(self._sizes) or None, patience.now)
        found: list[Any] = yield Together((part.result(patience) for part in self._parts), WIDTH, tally)
        return chunks.merged(self.operation, found)


class _Part:
    """One job of the server; ``asked`` is its place among all items, where that is known."""

    def __init__(self, id: str, operation: Operation) -> None:
        path(id)  # refused at once, not at the first look
        self.id = id
        self.operation = operation
        self.asked: tuple[int, int] | None = None
        self.outcome: Any = None

    def status(self) -> Call[JobStatus]:
        """How it stands; what became of it is kept."""
        reply: Reply = yield self._look()
        if reply.status == 202:
            return read(reply, results.read_job)
        try:
            self._take(reply)
        except SIEError as error:
            if (queued := still_queued(self.id, error)) is None:
                raise
            return queued
        return JobStatus(self.id, "failed" if isinstance(self.outcome, SIEError) else "done")

    def result(self, patience: Patience) -> Call[Any]:
        """What became of it, waited for; without time, only looked for."""
        if self.outcome is None and (patience.deadline_s > 0 or (yield from self.status()).state == "queued"):
            count = self.asked[1] - self.asked[0] if self.asked else 0
            try:
                self._take((yield from follow(self.id, self._look(patience.timeout_s), patience, items=count)))
            except SIEError as error:
                self._place(error)
                raise
        if isinstance(self.outcome, SIEError):
            raise self.outcome
        return self.outcome

    def _look(self, timeout_s: float = LOOK_S) -> Send:
        return Send("GET", path(self.id), calls.request_headers(formats.MSGPACK), None, timeout_s)

    def _take(self, reply: Reply) -> None:
        """Keep what became of the job, so that it is fetched once; a look that failed is raised."""
        if reply.status < 300:
            if self.asked is None:
                self._check_operation(reply)
            count = self.asked[1] - self.asked[0] if self.asked else None
            self.outcome = calls.answer(self.operation, reply, count)
            return
        error = refusals.read_error(reply.status, reply.headers, reply.body)
        error.request_id = reply.request_id
        if is_of_the_server(error) or isinstance(error, (JobNotFoundError, UnexpectedReplyError)):
            raise error
        self._place(error)
        self.outcome = error

    def _check_operation(self, reply: Reply) -> None:
        """Who attaches to a job says what it is; read as another's, a result would look empty."""
        found = read(reply, lambda body, _: results.operation_of(body))
        if found not in (None, self.operation):
            raise UnexpectedReplyError(
                f"Job {self.id} has the result of {found}, not of {self.operation}.",
                hint=f"Attach to it with client.job({self.id!r}, {found!r}).",
                request_id=reply.request_id,
                http_status=reply.status,
            )

    def _place(self, error: SIEError) -> None:
        if self.asked is not None and self.asked[0] > 0:
            chunks.place(error, *self.asked)


def _as_told(progress: Progress) -> Progress:
    return progress


class Job(AnyJob["httpx.Client", T]):
    """What ``SIEClient.submit`` returns. ``T`` is what ``result()`` returns."""


class AsyncJob(AnyJob["httpx.AsyncClient", T]):
    """What ``SIEAsyncClient.submit`` returns: the same, to be awaited. ``T`` is what ``await result()`` returns."""


def _unpickled(kind: type[AnyJob[Any, Any]], base_url: str, tenant: str | None, *fields: Any) -> AnyJob[Any, Any]:
    from sie_sdk.client import SIEAsyncClient, SIEClient

    client = (SIEAsyncClient if issubclass(kind, AsyncJob) else SIEClient)(base_url, tenant=tenant)
    client._keeps_alive = False  # nobody knows of this client, so nobody closes it
    return kind(client, *fields)
