"""The public methods on capacity, each written and documented once, for the blocking and the awaiting client.

Owns signatures and their documentation, as ``methods`` does for the others. What they send is ``capacity``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from sie_sdk import capacity
from sie_sdk.capacity import Capacity
from sie_sdk.carrier import Carrier, Http
from sie_sdk.effects import Cancel, Patience
from sie_sdk.types import Progress

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Async: TypeAlias = Coroutine[Any, Any, T]
Blocking: TypeAlias = "CapacityMethods[httpx.Client]"
Awaited: TypeAlias = "CapacityMethods[httpx.AsyncClient]"


class WaitKeywords(TypedDict, total=False):
    """The keywords of ``wait_for_capacity``."""

    pool: str | None
    deadline_s: float
    progress: Callable[[Progress], object] | None
    cancel: Cancel | None


class CapacityMethods(Carrier[Http]):
    """What both clients can tell of the server's workers."""

    @overload
    def get_capacity(self: Blocking) -> Capacity: ...
    @overload
    def get_capacity(self: Awaited) -> Async[Capacity]: ...

    def get_capacity(self) -> Any:
        """Which workers there are right now, what they have loaded, and what waits: a :class:`Capacity`.

        No worker is no fault: they come with work.
        """
        return self._run(capacity.get(self._impatience()))

    @overload
    def wait_for_capacity(self: Blocking, model: str | None = None, **keywords: Unpack[WaitKeywords]) -> Capacity: ...
    @overload
    def wait_for_capacity(
        self: Awaited, model: str | None = None, **keywords: Unpack[WaitKeywords]
    ) -> Async[Capacity]: ...

    def wait_for_capacity(
        self,
        model: str | None = None,
        *,
        pool: str | None = None,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
    ) -> Any:
        """Have a worker come up before it is needed: ``client.wait_for_capacity("ms-marco-MiniLM-L-6-v2")``.

        Args:
            model: what is to be loaded: a word is computed with it, by encode, score or extract as it needs, which
                starts a worker where there is none.
            pool: whose worker. Without a model this only waits until the pool has any, and starts none.
            deadline_s: seconds until this gives up.
            progress: called with a :class:`Progress` whenever the call begins to wait.
            cancel: a ``threading.Event``; setting it ends the wait.

        Returns:
            The :class:`Capacity` with that worker; without it where the deadline, or five seconds, passed after the
            word was computed and before the worker told of it.

        Raises:
            DeadlineExceededError: there was none in time; of a model, nothing was computed in time.
            ModelNotFoundError, PoolNotFoundError: there is no such thing to wait for.
        """
        patience = Patience(True, deadline_s, self._timeout_s, cancel)
        whose = pool or (self._pool if model is not None else None)
        return self._run(capacity.wait(model, whose, patience), progress)

    @overload
    def watch(
        self: Blocking, *, interval_s: float = 1.0, deadline_s: float = 60.0
    ) -> Generator[Capacity, None, None]: ...
    @overload
    def watch(
        self: Awaited, *, interval_s: float = 1.0, deadline_s: float = 60.0
    ) -> AsyncGenerator[Capacity, None]: ...

    def watch(self, *, interval_s: float = 1.0, deadline_s: float = 60.0) -> Any:
        """The capacity every ``interval_s`` seconds, without end: ``for seen in client.watch()``.

        A server that does not answer is asked again; after ``deadline_s`` seconds of that the last error is raised.
        """
        patience = Patience(True, deadline_s, self._timeout_s)
        return self._stream(capacity.watch(interval_s, patience), 1, None)
