"""The public methods on jobs, each written and documented once, for the blocking and the awaiting client.

Owns signatures and their documentation, as ``methods`` does for the others. What a job can do is ``jobs``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

from sie_sdk import calls, jobs
from sie_sdk.carrier import Carrier, Http
from sie_sdk.effects import Call
from sie_sdk.errors import InvalidInputError
from sie_sdk.jobs import AsyncJob, Job
from sie_sdk.keywords import Async, Many, One, SubmitEncode, SubmitExtract, SubmitKeywords
from sie_sdk.types import (
    EncodeResult,
    ExtractResult,
    Item,
    Operation,
    Progress,
    ScoreResult,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Blocking: TypeAlias = "JobMethods[httpx.Client]"
Awaited: TypeAlias = "JobMethods[httpx.AsyncClient]"


class JobMethods(Carrier[Http]):
    """What both clients can do with jobs. The first reading of one item goes before that of many, as in ``Methods``."""

    @overload
    def submit(  # type: ignore[overload-overlap]
        self: Blocking, operation: Literal["encode"], model: str, items: One, **keywords: Unpack[SubmitEncode]
    ) -> Job[EncodeResult]: ...
    @overload
    def submit(
        self: Blocking, operation: Literal["encode"], model: str, items: Many, **keywords: Unpack[SubmitEncode]
    ) -> Job[list[EncodeResult]]: ...
    @overload
    def submit(
        self: Blocking,
        operation: Literal["score"],
        model: str,
        items: One | Many,
        *,
        query: One,
        **keywords: Unpack[SubmitKeywords],
    ) -> Job[ScoreResult]: ...
    @overload
    def submit(  # type: ignore[overload-overlap]
        self: Blocking, operation: Literal["extract"], model: str, items: One, **keywords: Unpack[SubmitExtract]
    ) -> Job[ExtractResult]: ...
    @overload
    def submit(
        self: Blocking, operation: Literal["extract"], model: str, items: Many, **keywords: Unpack[SubmitExtract]
    ) -> Job[list[ExtractResult]]: ...
    @overload
    def submit(  # type: ignore[overload-overlap]
        self: Awaited, operation: Literal["encode"], model: str, items: One, **keywords: Unpack[SubmitEncode]
    ) -> Async[AsyncJob[EncodeResult]]: ...
    @overload
    def submit(
        self: Awaited, operation: Literal["encode"], model: str, items: Many, **keywords: Unpack[SubmitEncode]
    ) -> Async[AsyncJob[list[EncodeResult]]]: ...
    @overload
    def submit(
        self: Awaited,
        operation: Literal["score"],
        model: str,
        items: One | Many,
        *,
        query: One,
        **keywords: Unpack[SubmitKeywords],
    ) -> Async[AsyncJob[ScoreResult]]: ...
    @overload
    def submit(  # type: ignore[overload-overlap]
        self: Awaited, operation: Literal["extract"], model: str, items: One, **keywords: Unpack[SubmitExtract]
    ) -> Async[AsyncJob[ExtractResult]]: ...
    @overload
    def submit(
        self: Awaited, operation: Literal["extract"], model: str, items: Many, **keywords: Unpack[SubmitExtract]
    ) -> Async[AsyncJob[list[ExtractResult]]]: ...

    def submit(
        self,
        operation: Operation,
        model: str,
        items: One | Many,
        *,
        progress: Callable[[Progress], object] | None = None,
        **keywords: Any,
    ) -> Any:
        """Queue work and return at once: ``job = client.submit("encode", model, texts)``, later ``job.result()``.

        The work outlives this process; :meth:`job` attaches to it from another one.

        Args:
            operation: ``encode``, ``score`` (which takes ``query=``) or ``extract``.
            model: a name of ``list_models()``.
            items: one text or :class:`Item`, or a list of them. Of over 1000 items or four million characters several
                jobs are made, which this one joins: its id is theirs, with commas between. If one is refused,
                ``error.details["jobs"]`` has the ids of those accepted before, each with the ``[start, stop]`` of its
                items; to repeat the call with the ``idempotency_key`` it had finds them, and queues the rest.

        The keywords are those of ``encode``, ``score`` and ``extract``, but for ``wait_for_capacity`` and
        ``concurrency``. ``deadline_s`` is for having the work accepted; how long it takes is not counted.

        Returns:
            A :class:`Job`, the async client's an :class:`AsyncJob`. ``result()`` returns what the operation's own
            method would.

        Raises:
            InvalidInputError: the request can never succeed; ``error.field`` names what to change.
            DeadlineExceededError: it was not accepted in time.
        """
        if operation not in calls.ORDERS:
            raise InvalidInputError(
                f"There is no operation {operation!r}.",
                field="operation",
                hint=f"Use one of {', '.join(calls.ORDERS)}.",
            )
        order = calls.order(operation, model, self._timeout_s, self._pool, **keywords)
        return self._run(self._submitted(order, items), progress)

    @overload
    def job(self: Blocking, id: str, operation: Literal["encode"] = "encode") -> Job[list[EncodeResult]]: ...
    @overload
    def job(self: Blocking, id: str, operation: Literal["score"]) -> Job[ScoreResult]: ...
    @overload
    def job(self: Blocking, id: str, operation: Literal["extract"]) -> Job[list[ExtractResult]]: ...
    @overload
    def job(self: Awaited, id: str, operation: Literal["encode"] = "encode") -> AsyncJob[list[EncodeResult]]: ...
    @overload
    def job(self: Awaited, id: str, operation: Literal["score"]) -> AsyncJob[ScoreResult]: ...
    @overload
    def job(self: Awaited, id: str, operation: Literal["extract"]) -> AsyncJob[list[ExtractResult]]: ...

    def job(self, id: str, operation: Operation = "encode") -> Any:
        """Attach to a job by its id; nothing is sent. Nobody needs to await this one, not even of the async client.

        ``operation`` says how its result is read. A single item's result comes as a list of one.
        """
        return self._job(id, operation)

    def _submitted(self, order: calls.Order, items: One | Many) -> Call[Any]:
        one = isinstance(items, (str, Item)) and order.operation != "score"
        ids, sizes = yield from jobs.submit(order, calls.many(items))
        return self._job(",".join(ids), order.operation, sizes, one)

    @abstractmethod
    def _job(self, *fields: Any) -> Any:
        """The handle on work with these ids."""
