"""Runs calls over httpx: one driver that blocks, one that awaits, and the only place httpx's errors are translated.

Owns connection pools and timeouts. Not here: when to send or wait (``settle``), the public methods (``client``).
Imported on a client's first use, because httpx takes longer to import than the rest of the SDK together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx

from sie_sdk.effects import Call, Effect, Reply, Report, Send, Server, Wait
from sie_sdk.errors import ConnectionFailedError, InvalidInputError, SIEError, UnexpectedReplyError
from sie_sdk.types import Progress

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0

CANCEL_CHECK_S = 0.05
"""How late an awaiting call may notice its ``cancel``."""

Listener = Callable[[Progress], object] | None


def sync_pool(max_connections: int, keep_alive: bool) -> httpx.Client:
    """A pool of at most ``max_connections`` connections for :func:`run`, each for one request or for many."""
    return httpx.Client(limits=_limits(max_connections, keep_alive))


def async_pool(max_connections: int, keep_alive: bool) -> httpx.AsyncClient:
    """:func:`sync_pool` for :func:`run_async`."""
    return httpx.AsyncClient(limits=_limits(max_connections, keep_alive))


def run(http: httpx.Client, server: Server, call: Call[T], listener: Listener) -> T:
    """Run a call to its end on this thread; returns its result or raises its :class:`SIEError`."""
    outcome: Reply | SIEError | None = None
    while True:
        try:
            effect = _advance(call, outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = None
        try:
            match effect:
                case Send():
                    with _translated(server, effect):
                        outcome = _reply(http.send(_request(http, server, effect)))
                case Wait():
                    _pause(effect)
                case Report():
                    _tell(listener, effect)
        except SIEError as error:
            outcome = error


async def run_async(http: httpx.AsyncClient, server: Server, call: Call[T], listener: Listener) -> T:
    """:func:`run` for an event loop. Cancelling the task ends the call wherever it waits."""
    outcome: Reply | SIEError | None = None
    while True:
        try:
            effect = _advance(call, outcome)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = None
        try:
            match effect:
                case Send():
                    with _translated(server, effect):
                        outcome = _reply(await http.send(_request(http, server, effect)))
                case Wait():
                    await _pause_async(effect)
                case Report():
                    _tell(listener, effect)
        except SIEError as error:
            outcome = error


def _advance(call: Call[T], outcome: Reply | SIEError | None) -> Effect:
    return call.throw(outcome) if isinstance(outcome, SIEError) else call.send(outcome)


def _tell(listener: Listener, report: Report) -> None:
    if listener is not None:
        listener(report.progress)


def _pause(wait: Wait) -> None:
    if wait.cancel is None:
        time.sleep(wait.seconds)
    else:
        wait.cancel.wait(wait.seconds)


async def _pause_async(wait: Wait) -> None:
    if wait.cancel is None:
        await asyncio.sleep(wait.seconds)
        return
    end = time.monotonic() + wait.seconds
    # Polled, because a flag of threads cannot wake an event loop.
    while not wait.cancel.is_set() and (left := end - time.monotonic()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, CANCEL_CHECK_S))


def _limits(max_connections: int, keep_alive: bool) -> httpx.Limits:
    idle = max_connections if keep_alive else 0
    return httpx.Limits(max_connections=max_connections, max_keepalive_connections=idle)


def _request(http: httpx.Client | httpx.AsyncClient, server: Server, send: Send) -> httpx.Request:
    return http.build_request(
        send.method,
        server.base_url + send.path,
        headers=send.headers | server.headers,
        content=send.body,
        timeout=httpx.Timeout(send.timeout_s, connect=min(CONNECT_TIMEOUT_S, send.timeout_s)),
    )


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


@contextmanager
def _translated(server: Server, send: Send) -> Iterator[None]:
    try:
        with _errors_of_httpx(server):
            yield
    except SIEError as error:
        error.request_id = send.headers.get("X-Request-ID")
        raise


@contextmanager
def _errors_of_httpx(server: Server) -> Iterator[None]:
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError) as error:
        raise InvalidInputError(
            f"This request cannot be sent to {server.base_url}: {error}.",
            hint="Check base_url, api_key and idempotency_key for characters that do not belong there.",
        ) from error
    except (httpx.DecodingError, httpx.TooManyRedirects) as error:
        raise UnexpectedReplyError(f"The reply of {server.base_url} cannot be read: {error}.") from error
    except httpx.TimeoutException as error:
        raise ConnectionFailedError(f"{server.base_url} did not answer in time ({type(error).__name__}).") from error
    except httpx.HTTPError as error:
        raise ConnectionFailedError(
            f"Could not reach {server.base_url}: {str(error) or type(error).__name__}.",
            hint="Check that the server runs there (`sie up` starts one on this machine).",
        ) from error
