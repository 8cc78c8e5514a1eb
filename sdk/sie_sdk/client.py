"""The public clients: :class:`SIEClient` blocks on its calls, :class:`SIEAsyncClient` awaits them.

Owns where requests go and the life of the connection pool. Not here: the methods (``methods``), what a call does
(``calls``), how it is carried (``drivers``, ``transport``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from sie_sdk import arguments, streams
from sie_sdk.capacity_methods import CapacityMethods
from sie_sdk.carrier import Http
from sie_sdk.chunks import Chunk, Tally
from sie_sdk.effects import Call, Server, Together
from sie_sdk.errors import ConfigurationError
from sie_sdk.job_methods import JobMethods
from sie_sdk.jobs import AsyncJob, Job
from sie_sdk.methods import Methods
from sie_sdk.pool_methods import PoolKeywords, PoolMethods, pool_spec
from sie_sdk.stream_methods import StreamMethods
from sie_sdk.types import Progress

if TYPE_CHECKING:
    import httpx  # noqa: F401 - named by the clients' base classes

    from sie_sdk.drivers import AsyncLine, Line
    from sie_sdk.leases import AsyncPoolLease, PoolLease

L = TypeVar("L")

CLOSING_S = 2.0
"""How long ``close`` may wait for requests that are under way and whose results nobody wants any more."""

DEFAULT_BASE_URL = "http://127.0.0.1:8080"


class _Client(Methods[Http], StreamMethods[Http], JobMethods[Http], CapacityMethods[Http], PoolMethods[Http]):
    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        tenant: str | None = None,
        pool: str | None = None,
        machine_profile: str | None = None,
        timeout_s: float = 150.0,
        max_connections: int = 100,
        http_client: Http | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: the server, with its scheme; else ``SIE_BASE_URL``, else ``http://127.0.0.1:8080``. A final
                ``/v1`` may stand there.
            api_key: sent as a bearer token; else ``SIE_API_KEY``, else none is sent.
            tenant: on whose behalf, for the server's limits; else ``SIE_TENANT``, else nobody's.
            pool: the pool whose workers compute what a call names no other pool for.
            machine_profile: on which machines, ``l4`` for instance; a model that is not served on it is computed where
                it is served.
            timeout_s: seconds until one HTTP request is answered, or its answer goes on; at most a million. A call may
                make several.
            max_connections: connections open at a time; further requests wait for one.
            http_client: an httpx client of your own, for proxies, certificates, headers or tests. You close it, and
                it stays in the process that made it. Without one httpx's own environment counts: ``HTTPS_PROXY``,
                ``NO_PROXY``, ``SSL_CERT_FILE``.

        Raises:
            ConfigurationError: one of them makes no sense; ``error.field`` names it.
        """
        url = arguments.base_url(base_url or os.environ.get("SIE_BASE_URL") or DEFAULT_BASE_URL)
        arguments.seconds("timeout_s", timeout_s, ConfigurationError, bounded=True)
        arguments.count("max_connections", max_connections, ConfigurationError)
        key = arguments.header("api_key", api_key or os.environ.get("SIE_API_KEY"))
        self._tenant = arguments.header("tenant", tenant or os.environ.get("SIE_TENANT"))
        told = {
            "Authorization": key and f"Bearer {key}",
            "X-SIE-Tenant": self._tenant,
            "X-SIE-MACHINE-PROFILE": arguments.header("machine_profile", machine_profile),
        }
        self._server = Server(url, {name: value for name, value in told.items() if value})
        self._pool = arguments.header("pool", pool)
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._keeps_alive = True
        self._own_http: Http | None = http_client
        self._own_pid = os.getpid()
        self._lines: dict[Any, Any] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._closed = False
        self._leases: set[Any] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.shown!r})"

    # What holds a client may be copied; the client stays the one that its owner closes.

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            "A client does not pickle: its key and its connections stay in its process.",
            field="client",
            hint="Send the base_url, and make a client where it is used.",
        )

    @property
    def base_url(self) -> str:
        """The server's URL, without a final slash."""
        return self._server.base_url

    @property
    def tenant(self) -> str | None:
        """On whose behalf it calls."""
        return self._tenant

    def _opened(self, where: Any, open: Callable[[], L]) -> L:
        """The line of a process or an event loop, opened on its first use.

        A child process must not write to its parent's connections, nor a loop to another's. Of threads that race to the
        first use one opens it, for that takes some 40 ms of a core; the lock is of one process, too, since a child's
        parent may have held its own when it forked.
        """
        if self._closed:
            raise ConfigurationError("This client is closed.", hint="Make a new one, or leave its `with` block later.")
        if self._own_http is not None and os.getpid() != self._own_pid:
            raise ConfigurationError(
                "This client's http_client was made before this process was forked.",
                field="http_client",
                hint="Make both in the process that uses them.",
            )
        line: L | None = self._lines.get(where)
        if line is None:
            with self._opening.setdefault(os.getpid(), threading.Lock()):
                line = self._lines.get(where) or self._lines.setdefault(where, open())
        return line

    @property
    def _half(self) -> int:
        """Of the connections, for calls that would take many: the other half is for all other calls."""
        return max(1, self._max_connections // 2)


class SIEClient(_Client["httpx.Client"]):
    """A blocking client. Threads may share it; a forked child may go on using it.

    >>> with SIEClient("http://127.0.0.1:8080") as client:
    ...     vectors = [result.dense for result in client.encode("all-MiniLM-L6-v2", ["hello", "world"])]
    """

    def pool(self, name: str, gpus: Mapping[str, int] | None = None, **keywords: Unpack[PoolKeywords]) -> PoolLease:
        """A pool for a ``with`` block: made at its beginning, renewed by a thread meanwhile, deleted at its end.

        >>> with SIEClient() as client, client.pool("team-a", {"cpu": 2}, minimum_worker_count=1) as team:
        ...     client.encode("all-MiniLM-L6-v2", "hello", pool=team.name)

        The keywords are those of :meth:`create_pool`. It survives a server that is away for less than two thirds of
        ``ttl_s``, and is made again if it was away for longer.
        """
        from sie_sdk.leases import PoolLease

        return PoolLease(self, pool_spec(name, gpus, **keywords), self._timeout_s)

    def close(self) -> None:
        """Close the connections; calls after this raise, and those that wait for a reply in other threads raise now.

        Pools are not renewed any more, and end by themselves. With an ``http_client`` of your own, what is under way
        goes on.
        """
        for lease in [*self._leases]:
            lease.stop()
        self._closed = True
        if (line := self._lines.pop(os.getpid(), None)) is not None:
            from sie_sdk import transport

            transport.end(line.http)
            with self._calls_ended(line.slots):
                if self._own_http is None:
                    line.http.close()

    def __enter__(self) -> SIEClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _job(self, *fields: Any) -> Job[Any]:
        return Job(self, *fields)

    def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        from sie_sdk import drivers, unheard

        return drivers.run(self._line(), call, unheard.listener(progress))

    def _each(self, ask: Callable[[Chunk], Call[Any]], items: Any) -> Iterator[Call[Any]]:
        return streams.each(ask, items)

    def _stream(
        self, calls: Iterable[Call[Any]], width: int, progress: Callable[[Progress], object] | None
    ) -> Iterator[Any]:
        from sie_sdk import drivers, unheard

        together, told = Together(calls, width, Tally(None)), unheard.listener(progress)
        with contextlib.closing(drivers.in_order(self._line(), together, told, at_once=False)) as results:
            for result in results:
                yield from result

    @contextlib.contextmanager
    def _calls_ended(self, slots: threading.Semaphore) -> Iterator[None]:
        """Give the threads of calls that failed or were left a moment, to hand their connections back."""
        end, held = time.monotonic() + CLOSING_S, 0
        while held < self._half and slots.acquire(timeout=max(0.0, end - time.monotonic())):
            held += 1
        try:
            yield
        finally:
            if held:
                slots.release(held)

    def _line(self) -> Line:
        from sie_sdk import connections, drivers

        def open() -> Line:
            http = self._own_http or connections.Connections(self._max_connections, self._keeps_alive)
            return drivers.Line(http, self._server, threading.Semaphore(self._half))

        return self._opened(os.getpid(), open)


class SIEAsyncClient(_Client["httpx.AsyncClient"]):
    """The same client for asyncio: every method is awaited, and cancelling the task ends the call.

    Each event loop gets connections of its own; :meth:`close` closes those of the loop it is awaited in.

    >>> async with SIEAsyncClient("http://127.0.0.1:8080") as client:
    ...     result = await client.encode("all-MiniLM-L6-v2", "hello")
    """

    def pool(
        self, name: str, gpus: Mapping[str, int] | None = None, **keywords: Unpack[PoolKeywords]
    ) -> AsyncPoolLease:
        """A pool for an ``async with`` block, kept by a task; otherwise as :meth:`SIEClient.pool`."""
        from sie_sdk.leases import AsyncPoolLease

        return AsyncPoolLease(self, pool_spec(name, gpus, **keywords), self._timeout_s)

    async def close(self) -> None:
        """Close the connections; calls after this raise. Pools are not renewed any more, and end by themselves."""
        import asyncio

        for lease in [*self._leases]:
            await lease.stop()
        self._closed = True
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None and self._own_http is None:
            await line.http.aclose()

    async def __aenter__(self) -> SIEAsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _job(self, *fields: Any) -> AsyncJob[Any]:
        return AsyncJob(self, *fields)

    async def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        from sie_sdk import drivers, unheard

        return await drivers.run_async(self._line(), call, unheard.listener(progress))

    def _each(self, ask: Callable[[Chunk], Call[Any]], items: Any) -> AsyncIterator[Call[Any]]:
        return streams.each_awaited(ask, items)

    async def _stream(
        self,
        calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]],
        width: int,
        progress: Callable[[Progress], object] | None,
    ) -> AsyncIterator[Any]:
        from sie_sdk import drivers, unheard

        together, told = Together(calls, width, Tally(None)), unheard.listener(progress)
        running = drivers.in_order_async(self._line(), together, told, at_once=False)
        async with contextlib.aclosing(running) as results:
            async for result in results:
                for each in result:
                    yield each

    def _line(self) -> AsyncLine:
        import asyncio

        from sie_sdk import connections, drivers

        def open() -> AsyncLine:
            for ended in [loop for loop in [*self._lines] if loop.is_closed()]:
                self._lines.pop(ended, None)
            http = self._own_http or connections.AsyncConnections(self._max_connections, self._keeps_alive)
            return drivers.AsyncLine(http, self._server, asyncio.Semaphore(self._half))

        return self._opened(asyncio.get_running_loop(), open)
