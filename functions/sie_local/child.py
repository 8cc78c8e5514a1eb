"""One child process: started, waited for, restarted when it dies or does its work no more, stopped with grace.

Owns the process and its log file, nothing of what it does. It lives in a session of its own, so that Ctrl-C reaches
only the supervisor, and on Linux it dies with the supervisor even when that one is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
BACKOFF_S = (0.5, 30.0)
"""The first and the longest pause before a restart; it doubles in between."""
SETTLED_S = 60.0
"""A child that lived this long starts again with the shortest pause."""
UNWELL_S = 5.0
"""A child that says for so long that it is unwell is started anew."""
LOOK_S = 1.0
"""How often one is asked that can say so."""
TAIL_LINES = 30
TAIL_BYTES = 8192

State = Literal["starting", "ready", "unwell", "dead", "stopped"]
Probe = Callable[["Child"], Awaitable[bool]]


class Program(msgspec.Struct, frozen=True):
    """What to run; ``ready`` says when it can be used, ``grace_s`` is the time from SIGTERM to SIGKILL.

    ``well``: whether what was ready still does its work; None: as long as it lives.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    ready: Probe
    grace_s: float = 10.0
    well: Probe | None = None


class Child:
    """A `Program` kept alive; ``state`` is "unwell" before it is started anew, "dead" between a death and the restart.

    ``changed`` is called after each change of state, ``report`` with the account of each death.
    """

    def __init__(
        self, program: Program, logs: Path, changed: Callable[[Child], None], report: Callable[[str], None]
    ) -> None:
        self.program = program
        self.log = logs / f"{program.name}.log"
        self.state: State = "stopped"
        self.pid: int | None = None
        self.spawned_at = 0.0
        """Seconds since the epoch."""
        self.ready_s = 0.0
        """How long the last start took."""
        self.restarts = 0
        self.account = ""
        """How the last death came: exit status and last words, as one readable block."""
        self._changed = changed
        self._report = report
        self._log_from = 0
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it and keep it alive until `stop`. The log of an earlier run is kept beside the new one."""
        with contextlib.suppress(FileNotFoundError):
            self.log.replace(self.log.with_suffix(".log.old"))
        self._life = asyncio.create_task(self._live())

    async def until_ready(self) -> None:
        """Return once it is ready.

        Raises:
            RuntimeError: it died first; the message is the account of it.
        """
        while self.state != "ready":
            if self.state == "dead":
                raise RuntimeError(self.account)
            await self._news.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace; returns when it is gone."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        await self._end()
        self._become("stopped")

    async def _end(self) -> None:
        if (process := self._process) is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(self.program.grace_s):
                    await process.wait()
            except TimeoutError:
                self.kill()
                await process.wait()

    def kill(self) -> None:
        """SIGKILL, now."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def last_lines(self) -> list[str]:
        """The end of what it has written since its last start."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_from, size - TAIL_BYTES))
                return list(deque(file.read().decode(errors="replace").splitlines(), TAIL_LINES))
        except FileNotFoundError:
            return []

    def has_said(self, text: str) -> bool:
        """Whether that stands anywhere in what it has written since its last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_from)
                return text.encode() in file.read()
        except FileNotFoundError:
            return False

    async def _live(self) -> None:
        pause, longest = BACKOFF_S
        while True:
            self.account = await self._one_life()
            self._become("dead")
            self._report(self.account)
            if time.time() - self.spawned_at > SETTLED_S:
                pause = BACKOFF_S[0]
            await asyncio.sleep(pause)
            pause = min(longest, 2 * pause)
            self.restarts += 1

    async def _one_life(self) -> str:
        """Run it once, to its end; returns the account of that."""
        try:
            process = await self._spawn()
        except OSError as error:
            return f"{self.program.name} cannot be started: {error}"
        watching = asyncio.create_task(self._watch())
        try:
            status = await process.wait()
        finally:
            watching.cancel()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        if self.state == "unwell":
            how = "did its work no more and was ended"
        lines = "\n".join(f"  | {line}" for line in self.last_lines() or ["(it wrote nothing)"])
        return f"{self.program.name} (pid {self.pid}) {how} after {time.time() - self.spawned_at:.1f} s\n{lines}"

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.spawned_at = time.time()
        own = {"SIE_SPAWNED_AT": f"{self.spawned_at:.3f}", "PYTHONUNBUFFERED": "1"}
        # The child writes the file itself: no copy through this process, and nothing blocks when it is busy.
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            process = await asyncio.create_subprocess_exec(
                *self.program.command,
                env={**os.environ, **self.program.env, **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        self._process, self.pid = process, process.pid
        self._become("starting")
        return process

    async def _watch(self) -> None:
        while not await self.program.ready(self):  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(POLL_S)
        self.ready_s = time.time() - self.spawned_at
        self._become("ready")
        if self.program.well is not None:
            await self._until_unwell(self.program.well)
            await self._end()

    async def _until_unwell(self, well: Probe) -> None:
        """Return when it has been unwell for `UNWELL_S` without a break."""
        unwell_since: float | None = None
        while unwell_since is None or time.monotonic() - unwell_since < UNWELL_S:
            await asyncio.sleep(LOOK_S)
            if await well(self):
                unwell_since = None
            elif unwell_since is None:
                unwell_since = time.monotonic()
            state: State = "ready" if unwell_since is None else "unwell"
            if state != self.state:
                self._become(state)

    def _become(self, state: State) -> None:
        self.state = state
        self._news.set()
        self._news = asyncio.Event()
        self._changed(self)


def serves(port: int, host: str = LOOPBACK) -> Probe:
    """Ready when ``GET /readyz`` there answers 200."""

    async def probe(_: Child) -> bool:
        return b" 200 " in await _first_line(host, port, _get("/readyz"))

    return probe


def is_well(port: int) -> Probe:
    """Well unless ``GET /healthz`` at this loopback port answers 503; who does not answer is busy, or ends anyway."""

    async def probe(_: Child) -> bool:
        return b" 503 " not in await _first_line(LOOPBACK, port, _get("/healthz"))

    return probe


def greets(port: int, greeting: bytes) -> Probe:
    """Ready when a connection to this loopback port is greeted so (a NATS server says INFO)."""

    async def probe(_: Child) -> bool:
        return (await _first_line(LOOPBACK, port, b"")).startswith(greeting)

    return probe


def says(text: str) -> Probe:
    """Ready when the log of this start shows ``text``."""

    async def probe(child: Child) -> bool:
        return child.has_said(text)

    return probe


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


async def _first_line(host: str, port: int, request: bytes) -> bytes:
    """The first line somebody there says; empty when nobody does within a second."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                return await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):
        return b""


def _die_with_parent() -> Callable[[], None] | None:
    """What a new process runs before its program, so that it is killed when this one ends; None where unsupported."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def before_exec() -> None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it ended before the line above

    return before_exec
