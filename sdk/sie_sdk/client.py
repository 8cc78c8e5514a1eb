"""The public clients: :class:`SIEClient` blocks on its calls, :class:`SIEAsyncClient` awaits them.

Owns where requests go and the life of the connection pool. Not here: the methods (``methods``), what a call does
(``calls``), how it is carried (``transport``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sie_sdk.effects import Call, Server
from sie_sdk.errors import ConfigurationError
from sie_sdk.methods import Http, Methods
from sie_sdk.types import Progress

if TYPE_CHECKING:
    import httpx  # noqa: F401 - named by the clients' base classes

DEFAULT_BASE_URL = "http://127.0.0.1:8080"


class _Client(Methods[Http]):
    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        tenant: str | None = None,
        timeout_s: float = 150.0,
        max_connections: int = 100,
        http_client: Http | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: the server, with its scheme; else ``SIE_BASE_URL``, else ``http://127.0.0.1:8080``.
            api_key: sent as a bearer token; else ``SIE_API_KEY``, else none is sent.
            tenant: on whose behalf, for the server's limits; else ``SIE_TENANT``, else nobody's.
            timeout_s: seconds one HTTP request may take; a call may make several.
            max_connections: connections open at a time; further requests wait for one.
            http_client: an httpx client of your own (proxies, certificates, test transports). You close it.

        Raises:
            ConfigurationError: ``base_url`` is not an http or https URL.
        """
        url = (base_url or os.environ.get("SIE_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"base_url {url!r} has no scheme.", field="base_url", hint=f"Write http://{url}.")
        key = api_key or os.environ.get("SIE_API_KEY")
        behalf = tenant or os.environ.get("SIE_TENANT")
        self._server = Server(
            url, ({"Authorization": f"Bearer {key}"} if key else {}) | ({"X-SIE-Tenant": behalf} if behalf else {})
        )
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._own_http: Http | None = http_client
        self._pools: dict[int, Http] = {}
        self._closed = False

    @property
    def base_url(self) -> str:
        """The server's URL, without a final slash."""
        return self._server.base_url

    def _http(self, make: Callable[[int], Http]) -> Http:
        if self._closed:
            raise ConfigurationError("This client is closed.", hint="Make a new one, or leave its `with` block later.")
        if self._own_http is not None:
            return self._own_http
        # A child process must not write to its parent's connections, so each process opens its own pool. Threads may
        # race to the first use: setdefault keeps one pool, and one that was never used holds nothing open.
        pid = os.getpid()
        return self._pools.get(pid) or self._pools.setdefault(pid, make(self._max_connections))

    def _take_pool(self) -> Http | None:
        self._closed = True
        return self._pools.pop(os.getpid(), None)


class SIEClient(_Client["httpx.Client"]):
    """A blocking client. Threads may share it; a forked child may go on using it.

    >>> with SIEClient("http://127.0.0.1:8080") as client:
    ...     vectors = [result.dense for result in client.encode("all-MiniLM-L6-v2", ["hello", "world"])]
    """

    def close(self) -> None:
        """Close the connections; calls after this raise."""
        if pool := self._take_pool():
            pool.close()

    def __enter__(self) -> SIEClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        from sie_sdk import transport

        return transport.run(self._http(transport.sync_pool), self._server, call, progress)


class SIEAsyncClient(_Client["httpx.AsyncClient"]):
    """The same client for one asyncio event loop: every method is awaited, and cancelling the task ends the call.

    >>> async with SIEAsyncClient("http://127.0.0.1:8080") as client:
    ...     result = await client.encode("all-MiniLM-L6-v2", "hello")
    """

    async def close(self) -> None:
        """Close the connections; calls after this raise."""
        if pool := self._take_pool():
            await pool.aclose()

    async def __aenter__(self) -> SIEAsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        from sie_sdk import transport

        http = self._http(transport.async_pool)
        return await transport.run_async(http, self._server, call, progress)
