"""The local stand-in for Knative's activator and autoscaler: ``POST /{service}`` reaches a process, started if need be.

A request waits while no process is ready, then is passed on and streamed back; a client that leaves takes its request
along. Owns the processes of each service and the requests that are open. The rule is in ``autoscaling``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx

from sie_local.autoscaling import Concurrency, Policy, desired
from sie_local.child import Child

log = logging.getLogger("sie.local.scaler")

TICK_S = 0.2
CONNECT_AGAIN_S = 0.05
"""A process that has just died looks ready until its death is known."""
TIMEOUT_TEXT = b"activator request timeout"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Process:
    """A ready or starting process of a service: where it listens and how many requests it has open."""

    def __init__(self, child: Child, url: str) -> None:
        self.child = child
        self.url = url
        self.open = 0


class Service:
    """The processes of one service and the requests that wait for one."""

    def __init__(self, spawn: Callable[[], Process], policy: Policy, unheld: Callable[[], bool]) -> None:
        self.processes: list[Process] = []
        self.concurrency = Concurrency()
        self._spawn = spawn
        self._policy = policy
        self._unheld = unheld
        self._kept_until = 0.0
        self._ticking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._leaving: dict[asyncio.Task[None], Child] = {}

    @contextlib.asynccontextmanager
    async def admitted(self) -> AsyncIterator[Process]:
        """A ready process for one request; counts as open from here on, also while it waits."""
        self.concurrency.change(+1, time.monotonic())
        try:
            self._rescale()
            process = await self._ready()
            process.open += 1
            try:
                yield process
            finally:
                process.open -= 1
        finally:
            self.concurrency.change(-1, time.monotonic())

    async def close(self) -> None:
        """Stop all processes."""
        if self._ticking is not None:
            self._ticking.cancel()
        for process in self.processes:
            self._leave(process)
        self.processes = []
        await asyncio.gather(*self._leaving)

    def kill(self) -> None:
        """SIGKILL all processes, also those that are draining."""
        for child in (*self._leaving.values(), *(process.child for process in self.processes)):
            child.kill()

    def changed(self) -> None:
        """A process became ready or died: requests that wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _ready(self) -> Process:
        while True:
            ready = [process for process in self.processes if process.child.state == "ready"]
            if ready:
                return min(ready, key=lambda process: process.open)
            await self._changed.wait()

    def _rescale(self) -> None:
        now = time.monotonic()
        average = self.concurrency.average(now, self._policy.window_s)
        wanted = desired(len(self.processes), average, self.concurrency.idle_s(now), self._policy)
        if self._unheld():
            self._kept_until = now + self._policy.window_s + self._policy.grace_s
        if now < self._kept_until:
            wanted = max(wanted, len(self.processes))
        while len(self.processes) < wanted:
            self.processes.append(self._spawn())
        while len(self.processes) > wanted:
            self._leave(self.processes.pop())
        if wanted and (self._ticking is None or self._ticking.done()):
            self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        """Rescale now and then; a service at zero has nothing to do, and no timer."""
        while self.processes:
            await asyncio.sleep(TICK_S)
            self._rescale()

    def _leave(self, process: Process) -> None:
        stopping = asyncio.create_task(process.child.stop())
        self._leaving[stopping] = process.child
        stopping.add_done_callback(self._leaving.pop)


class Scaler:
    """The ASGI application. ``spawn(service)`` starts a process of a service, if ``is_service(name)`` says that one is.

    While ``unheld()`` says that whoever asks for processes is away, and for a window and a grace after it is back, none
    is stopped for want of requests: Knative's window outlives a restart of the demand holder, the short one here
    does not.
    """

    def __init__(
        self,
        spawn: Callable[[str], Process],
        is_service: Callable[[str], bool],
        policy: Policy,
        unheld: Callable[[], bool],
    ) -> None:
        self.services: dict[str, Service] = {}
        self._spawn = spawn
        self._is_service = is_service
        self._policy = policy
        self._unheld = unheld
        self._client = httpx.AsyncClient(
            verify=False, trust_env=False, timeout=None, limits=httpx.Limits(max_connections=None)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, raced against its client's patience."""
        assert scope["type"] == "http"
        body = await _body(receive)
        passing = asyncio.create_task(self._pass_on(scope, body, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def close(self) -> None:
        """Stop every process of every service."""
        await asyncio.gather(*(service.close() for service in self.services.values()))
        await self._client.aclose()

    def kill(self) -> None:
        """SIGKILL every process of every service."""
        for service in self.services.values():
            service.kill()

    def changed(self) -> None:
        """Tell every service that some process changed its state."""
        for service in self.services.values():
            service.changed()

    def _service(self, name: str) -> Service:
        if name not in self.services:
            self.services[name] = Service(lambda: self._spawn(name), self._policy, self._unheld)
        return self.services[name]

    async def _pass_on(self, scope: Scope, body: bytes, send: Send) -> None:
        """Answer one request, whatever happens to the processes."""
        answer = _Answer(send)
        name = scope["path"].strip("/")
        if not self._is_service(name):  # asked first: a service is kept
            await answer.instead(404, f"no such service: {name}".encode())
            return
        try:
            async with asyncio.timeout(self._policy.request_timeout_s):
                while not await self._tried(name, scope, body, answer):  # noqa: ASYNC110 - not a condition, an attempt
                    await asyncio.sleep(CONNECT_AGAIN_S)
        except TimeoutError:
            await answer.instead(504, TIMEOUT_TEXT)
        except httpx.HTTPError as error:
            log.info("%s: %s", name, error or type(error).__name__)
            await answer.instead(502, b"the process went away")

    async def _tried(self, name: str, scope: Scope, body: bytes, answer: _Answer) -> bool:
        """Pass a request to a ready process; False when nobody listens there any more: nothing was sent."""
        headers = [(key, value) for key, value in scope["headers"] if key not in (b"host", b"connection")]
        async with self._service(name).admitted() as process:
            request = self._client.stream(scope["method"], process.url, headers=headers, content=body)
            try:
                async with request as got:
                    await answer.stream(got)
            except httpx.ConnectError:
                return False
        return True


class _Answer:
    """The answer to one request: the process's own as it comes, or ours while that has not begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def stream(self, got: httpx.Response) -> None:
        """Pass a process's answer on, undecoded."""
        headers = [(key.lower(), value) for key, value in got.headers.raw if key.lower() != b"connection"]
        self._begun = True
        await self._send({"type": "http.response.start", "status": got.status_code, "headers": headers})
        async for part in got.aiter_raw():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def instead(self, status: int, text: bytes) -> None:
        """Answer in place of the process; one whose answer has begun is cut off."""
        if self._begun:
            return
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": text})


async def _body(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(parts)


async def _left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
