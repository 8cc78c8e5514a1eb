"""What every process of ours does at its start and its end: logging, the port, signals, one error line.

A function's process reads its settings, connects, serves HTTP and leaves on SIGTERM; this module is that frame.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from sie_broker.ending import end
from sie_sdk.errors import ConfigurationError, QueueUnavailableError, SIEError

if TYPE_CHECKING:
    from sie_broker.contract import Broker

log = logging.getLogger("sie")

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
CONNECT_S = 30.0
DRAIN_S = 10
LAST_PORT = 65_535
KEEP_ALIVE_S = 120
"""Longer than clients keep a connection that rests (90 s for published ones): so nobody sends into one that closes."""


def run(name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run ``main`` on uvloop until it ends, then leave; a typed error is one line and exit status 1.

    What threads still do is not waited for: a download may take minutes more, and its file is of no use half.
    """
    status = 0
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    for chatty in ("httpx", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        logging.getLogger().setLevel(log_level())
        import uvloop

        uvloop.run(main())
    except SIEError as error:
        log.error("%s %s", error.code, error)
        status = 1
    except KeyboardInterrupt:
        pass
    except Exception:
        log.exception("%s failed", name)
        status = 1
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


def began() -> float:
    """When this process was begun, by this machine's clock, to 10 ms; before Python itself was there."""
    try:
        with open("/proc/self/stat") as stat:
            # Fields are counted from the end of the name, which may hold anything.
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except OSError:  # not Linux
        return time.time()


def log_level(environ: Mapping[str, str] = os.environ) -> str:
    """What is logged: ``SIE_LOG_LEVEL``, in any case; INFO when unset."""
    if (level := environ.get("SIE_LOG_LEVEL", "INFO").upper()) not in LOG_LEVELS:
        raise ConfigurationError(
            f"SIE_LOG_LEVEL={environ['SIE_LOG_LEVEL']!r} is wrong: one of {', '.join(LOG_LEVELS)} is meant.",
            field="SIE_LOG_LEVEL",
        )
    return level


def port(environ: Mapping[str, str] = os.environ) -> int:
    """The port to listen on: ``PORT``, as Knative sets it; 8080 when unset."""
    try:
        number = int(environ.get("PORT", "8080"))
    except ValueError:
        raise ConfigurationError(f"PORT={environ['PORT']!r} is not a number.", field="PORT") from None
    if not 0 <= number <= LAST_PORT:
        raise ConfigurationError(
            f"PORT={number} is no port.", field="PORT", limit=LAST_PORT, hint=f"Choose one from 0 (any) to {LAST_PORT}."
        )
    return number


async def connect(broker: Broker) -> None:
    """Connect, as patiently as `patiently` is.

    Raises:
        QueueUnavailableError: still no broker.
    """
    await patiently(broker.connect)


async def patiently(step: Callable[[], Awaitable[None]]) -> None:
    """Run a step that needs the broker, again and again for 30 s: on a platform nobody starts before anybody.

    Raises:
        QueueUnavailableError: the broker is still not able to.
    """
    deadline = asyncio.get_running_loop().time() + CONNECT_S
    while True:
        try:
            return await step()
        except QueueUnavailableError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


def collect_less() -> None:
    """Let Python's collector leave alone what is there by now, and look at the rest less often.

    What is imported stays. A full collection that looks at it all stops every request, for a tenth of a second where an
    engine is among it, and came every other second under load.
    """
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, _tell_tasks)
    return stop


def _tell_tasks() -> None:
    """SIGUSR1: write to the log what every task waits for; the first question about a process that hangs."""
    for task in asyncio.all_tasks():
        stack = io.StringIO()
        task.print_stack(file=stack)
        log.info("%s", stack.getvalue().strip())


async def unless(stop: asyncio.Event, step: Coroutine[Any, Any, None]) -> bool:
    """Run a step of the start-up; False when told to stop before its end. Raises what the step raises."""
    running, stopping = asyncio.ensure_future(step), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            return True
        return False
    finally:
        await end(running, stopping)


@asynccontextmanager
async def serving(
    app: Any, host: str, port: int, *, drain_s: int = DRAIN_S, websockets: bool = False
) -> AsyncIterator[int]:
    """Serve an ASGI app while the context is open; yields the port, a free one for 0. ``websockets``: these too.

    At its end requests in flight may finish within ``drain_s`` seconds; then they are cut, and their callers ask again.

    Raises:
        ConfigurationError: the port is taken, or the address is none of this machine's.
    """
    import uvicorn

    from sie_broker.http_protocol import Protocol

    config = uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        # Its frames are made once for all and sent to many: compressing them for each would cost more than it saves.
        ws="websockets-sansio" if websockets else "none",
        ws_per_message_deflate=False,
        ws_max_size=4096,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_s or None,
    )
    server = uvicorn.Server(config)
    with _bound(host, port) as listener:
        # The steps of `Server.serve()` but for its signal handlers, which belong to `stop_signal`, and its loop, which
        # ticks ten times a second for a date header and a request limit that are not used here.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield listener.getsockname()[1]
        finally:
            server.force_exit = drain_s == 0
            await server.shutdown(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {error.strerror}.",
            field="PORT" if of_port else "SIE_HOST",
            hint="Choose another port." if of_port else "Listen on an address of this machine: 127.0.0.1, or 0.0.0.0.",
        ) from error
