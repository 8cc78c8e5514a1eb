"""HTTP requests over httpx, and the only place where httpx's errors are translated.

Owns timeouts of connections and what a failed one means. Not here: when to send or wait (``settle``), running calls
(``drivers``). Imported on a client's first use, because httpx takes longer to import than the rest of the SDK.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

import httpx

from sie_sdk import arguments
from sie_sdk.connections import AsyncConnections, Connections
from sie_sdk.effects import Reply, Send, Server
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, InvalidInputError, SIEError, UnexpectedReplyError

CONNECT_TIMEOUT_S = 10.0

MAX_REPLY_BYTES = 512 * 1024 * 1024
"""At most this many bytes in a reply, unpacked: twice what a server answers by itself, and a bound where one lies."""

AnyHttp: TypeAlias = httpx.Client | Connections | httpx.AsyncClient | AsyncConnections

CLOSED = "This client is closed."
CLOSED_HINT = "Make a new one, or leave its `with` block later."


def end(http: httpx.Client | Connections) -> None:
    """End the requests that are under way over our own connections; a client of the caller's own goes on."""
    if isinstance(http, Connections):
        http.end()


def send(http: httpx.Client | Connections, server: Server, effect: Send) -> Reply:
    """One request and its reply, whatever its status.

    Raises:
        ConnectionFailedError: there was none.
        InvalidInputError, UnexpectedReplyError: the request cannot be sent, or its reply not be read.
    """
    end = None if effect.patience_s is None else time.monotonic() + effect.patience_s
    own = http.taken(patience_s(effect)) if isinstance(http, Connections) else nullcontext(http)
    with _translated(http, server, effect), own as client:
        response = client.send(_request(client, server, effect), stream=True)
        body = _Body(server, effect, response)
        try:
            for chunk in response.iter_bytes():
                body.take(chunk)
                if end is not None and time.monotonic() > end:
                    raise TimeoutError  # httpx's own timeouts begin anew with each chunk
        finally:
            response.close()
        if http.is_closed and (stream := response.extensions.get("network_stream")) is not None:
            stream.close()  # it was still being connected when its client was closed, which then knew nothing of it
        return _reply(effect, response, body)


async def send_async(http: httpx.AsyncClient | AsyncConnections, server: Server, effect: Send) -> Reply:
    """:func:`send`, awaited."""
    own = http.taken(patience_s(effect)) if isinstance(http, AsyncConnections) else nullcontext(http)
    with _translated(http, server, effect):
        async with asyncio.timeout(effect.patience_s), own as client:
            response = await client.send(_request(client, server, effect), stream=True)
            body = _Body(server, effect, response)
            try:
                async for chunk in response.aiter_bytes():
                    body.take(chunk)
            finally:
                await response.aclose()
        if http.is_closed and (stream := response.extensions.get("network_stream")) is not None:
            await stream.aclose()  # as in `send`
        return _reply(effect, response, body)


class _Body:
    """What has come of a reply's body."""

    def __init__(self, server: Server, send: Send, response: httpx.Response) -> None:
        self._server = server
        self._send = send
        self._response = response
        self._room = MAX_REPLY_BYTES
        self.chunks: list[bytes] = []

    def take(self, chunk: bytes) -> None:
        self._room -= len(chunk)
        if self._room < 0:
            raise UnexpectedReplyError(
                f"The reply of {self._server.shown} is larger than {MAX_REPLY_BYTES} bytes.",
                limit=MAX_REPLY_BYTES,
                request_id=self._response.headers.get("x-request-id") or self._send.headers.get("X-Request-ID"),
                http_status=self._response.status_code,
                hint="Ask for less at a time.",
            )
        self.chunks.append(chunk)


def _request(http: httpx.Client | httpx.AsyncClient, server: Server, send: Send) -> httpx.Request:
    headers = httpx.Headers(send.headers | server.headers)
    if send.texts:
        headers.update(httpx.Headers(send.texts, encoding="utf-8"))
    return http.build_request(
        send.method,
        server.base_url + send.path,
        headers=headers,
        content=send.body,
        timeout=httpx.Timeout(send.timeout_s, connect=min(CONNECT_TIMEOUT_S, send.timeout_s)),
    )


def _reply(send: Send, response: httpx.Response, body: _Body) -> Reply:
    return Reply(response.status_code, response.headers, b"".join(body.chunks), send.headers.get("X-Request-ID"))


def no_connection(send: Send) -> ConnectionFailedError:
    """Others had all connections for as long as a request waits for one."""
    return ConnectionFailedError(
        f"No connection was free within {patience_s(send):.3g} s: other calls of this client have them all.",
        limit=patience_s(send),
        hint="Make the client with more max_connections, or ask for less at a time.",
    )


def patience_s(send: Send) -> float:
    """How long a request waits for a connection."""
    return send.timeout_s if send.patience_s is None else send.patience_s


@contextmanager
def _translated(http: AnyHttp, server: Server, send: Send) -> Iterator[None]:
    try:
        yield
    except Exception as reason:
        if http.is_closed:  # by another thread or task, since the call began: any error may come of it
            raise ConfigurationError(CLOSED, hint=CLOSED_HINT) from None
        if not isinstance(reason, (httpx.HTTPError, httpx.InvalidURL, UnicodeError, TimeoutError)):
            raise
        error = _error_of(reason, server.shown, send)
        if isinstance(error, InvalidInputError):
            raise error from None  # nothing was sent, and no log knows the request
        error.request_id = send.headers.get("X-Request-ID")
        raise error from reason


def _error_of(reason: Exception, server: str, send: Send) -> SIEError:
    unfit = next((name for name, value in send.headers.items() if not arguments.is_sendable(value)), None)
    match reason:
        case httpx.LocalProtocolError() | UnicodeError() if unfit or isinstance(reason, httpx.LocalProtocolError):
            # Not the reason: it shows the value of the header, which may be a key.
            return InvalidInputError(
                f"This request cannot be sent to {server}: {unfit or 'a header'} has characters no header may have.",
                field=unfit,
                hint="Pass visible ASCII, without a line break or a blank at either end.",
            )
        case httpx.InvalidURL() | httpx.UnsupportedProtocol() | UnicodeError():
            return InvalidInputError(
                f"This request cannot be sent to {server}: {reason}.", field="base_url", hint="Check base_url."
            )
        case httpx.DecodingError() | httpx.TooManyRedirects():
            return UnexpectedReplyError(f"The reply of {server} cannot be read: {reason}.")
        case httpx.PoolTimeout():
            return no_connection(send)
        case httpx.ConnectTimeout():
            return _unreachable(f"{server} did not answer in time ({type(reason).__name__}).")
        case httpx.TimeoutException():
            told = f"{server} did not answer in time ({type(reason).__name__})."
            return ConnectionFailedError(told, limit=send.timeout_s)
        case TimeoutError():
            return ConnectionFailedError(f"{server} did not answer in time ({type(reason).__name__}).")
    return _unreachable(f"Could not reach {server}: {str(reason).rstrip('.') or type(reason).__name__}.")


def _unreachable(told: str) -> ConnectionFailedError:
    return ConnectionFailedError(told, hint="Check that the server runs there (`sie up` starts one on this machine).")
