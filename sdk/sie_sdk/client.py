"""The public clients. Each method is written once; :class:`SIEClient` blocks on it, :class:`SIEAsyncClient` awaits it.

Owns signatures, their documentation and the life of the connection pool. Not here: what a call does (``calls``), how it
is carried (``transport``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict, TypeVar, Unpack, overload

from sie_sdk import calls
from sie_sdk.calls import Call, Cancel, Patience, Server
from sie_sdk.errors import ConfigurationError
from sie_sdk.types import EncodeResult, Item, ModelInfo, OutputDtype, OutputType, Progress

if TYPE_CHECKING:
    # httpx takes longer to import than the rest of the SDK together; the first client made imports it.
    import httpx

DEFAULT_BASE_URL = "http://127.0.0.1:8080"

T = TypeVar("T")
Http = TypeVar("Http", bound="httpx.Client | httpx.AsyncClient")
One: TypeAlias = Item | str
Many: TypeAlias = Sequence[Item | str]
Async: TypeAlias = Coroutine[Any, Any, T]


class EncodeKeywords(TypedDict, total=False):
    """The keywords of ``encode``, for the type checker; ``encode`` itself documents them."""

    output_types: Sequence[OutputType] | None
    instruction: str | None
    output_dtype: OutputDtype | None
    is_query: bool | None
    options: Mapping[str, Any] | None
    wait_for_capacity: bool
    deadline_s: float
    progress: Callable[[Progress], object] | None
    cancel: Cancel | None
    idempotency_key: str | None


class _Client(Generic[Http]):
    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 150.0,
        max_connections: int = 100,
        http_client: Http | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: the server, with its scheme; else ``SIE_BASE_URL``, else ``http://127.0.0.1:8080``.
            api_key: sent as a bearer token; else ``SIE_API_KEY``, else none is sent.
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
        self._server = Server(url, {"Authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._own_http: Http | None = http_client
        self._pools: dict[int, Http] = {}
        self._closed = False

    @property
    def base_url(self) -> str:
        """The server's URL, without a final slash."""
        return self._server.base_url

    # encode has four readings: one item or many, blocking or awaited. A str is a sequence of str as well, hence the
    # ignores: the first reading that fits is the one meant, for the type checker as at run time.
    @overload
    def encode(  # type: ignore[overload-overlap]
        self: _Client[httpx.Client], model: str, items: One, **keywords: Unpack[EncodeKeywords]
    ) -> EncodeResult: ...
    @overload
    def encode(
        self: _Client[httpx.Client], model: str, items: Many, **keywords: Unpack[EncodeKeywords]
    ) -> list[EncodeResult]: ...
    @overload
    def encode(  # type: ignore[overload-overlap]
        self: _Client[httpx.AsyncClient], model: str, items: One, **keywords: Unpack[EncodeKeywords]
    ) -> Async[EncodeResult]: ...
    @overload
    def encode(
        self: _Client[httpx.AsyncClient], model: str, items: Many, **keywords: Unpack[EncodeKeywords]
    ) -> Async[list[EncodeResult]]: ...

    def encode(
        self,
        model: str,
        items: Item | str | Sequence[Item | str],
        *,
        output_types: Sequence[OutputType] | None = None,
        instruction: str | None = None,
        output_dtype: OutputDtype | None = None,
        is_query: bool | None = None,
        options: Mapping[str, Any] | None = None,
        wait_for_capacity: bool = True,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Turn texts into vectors: ``client.encode("all-MiniLM-L6-v2", "hello").dense`` has shape ``[dims]``.

        A server that has scaled to zero wakes up meanwhile; ``progress`` tells how far it is.

        Args:
            model: a name of ``list_models()``.
            items: one text or :class:`Item`, or a list of them.
            output_types: what to compute; default the model's own.
            instruction: put before each text, for models that were trained with one.
            output_dtype: the arrays' dtype; default ``float32``.
            is_query: True for a search query, False for a document; only some models tell them apart.
            options: per-model choices, see the model's own page.
            wait_for_capacity: False raises at once instead of waiting for a worker.
            deadline_s: seconds until the call gives up, waiting included. The work stays queued.
            progress: called with a :class:`Progress` whenever the call begins to wait; what it raises ends the call.
            cancel: a ``threading.Event``; setting it ends a wait at once, and a request being held within a second.
            idempotency_key: names this piece of work; the server computes it once however often it is sent.

        Returns:
            One :class:`EncodeResult` for one item, a list in the items' order for a list; the async client's to await.

        Raises:
            InvalidInputError: the request can never succeed; ``error.field`` names what to change.
            ModelNotFoundError: ``error.details["nearest"]`` has names that are close.
            UnavailableError: not now, and ``wait_for_capacity`` is False; ``error.retry_after`` says when.
            DeadlineExceededError: ``deadline_s`` passed; ``error.details["job"]`` names the queued work.
            SIEError: anything else; the whole tree is in ``sie_sdk.errors``.
        """
        patience = Patience(wait_for_capacity, deadline_s, self._timeout_s, cancel)
        many = [items] if isinstance(items, (str, Item)) else items
        call = calls.encode(
            model,
            many,
            patience,
            output_types=output_types,
            instruction=instruction,
            output_dtype=output_dtype,
            is_query=is_query,
            options=options,
            idempotency_key=idempotency_key,
        )
        return self._run(call if many is items else calls.first(call), progress)

    @overload
    def list_models(self: _Client[httpx.Client]) -> list[ModelInfo]: ...
    @overload
    def list_models(self: _Client[httpx.AsyncClient]) -> Async[list[ModelInfo]]: ...

    def list_models(self) -> Any:
        """Every model the server knows, loaded or not; never waits for a worker."""
        return self._run(calls.list_models(self._impatience()))

    @overload
    def get_model(self: _Client[httpx.Client], name: str) -> ModelInfo: ...
    @overload
    def get_model(self: _Client[httpx.AsyncClient], name: str) -> Async[ModelInfo]: ...

    def get_model(self, name: str) -> Any:
        """One model by name.

        Raises:
            ModelNotFoundError: ``error.details["nearest"]`` has names that are close.
        """
        return self._run(calls.get_model(name, self._impatience()))

    def _impatience(self) -> Patience:
        return Patience(wait_for_capacity=False, deadline_s=self._timeout_s, timeout_s=self._timeout_s)

    def _run(self, call: Call[Any], progress: Callable[[Progress], object] | None = None) -> Any:
        raise NotImplementedError

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
