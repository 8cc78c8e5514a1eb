"""What every process of ours does at its start and its end: logging, the port, signals, one error line.

A function's process reads its settings, connects, serves HTTP and leaves on SIGTERM; this module is that frame.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from sie_sdk.errors import ConfigurationError, QueueUnavailableError, SIEError

if TYPE_CHECKING:
    from sie_broker.contract import Broker

log = logging.getLogger("sie")

CONNECT_S = 30.0


def run(name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
    """Run ``main`` on uvloop until it ends; a typed error is one line and exit status 1."""
    logging.basicConfig(
        level=os.environ.get("SIE_LOG_LEVEL", "INFO").upper(),
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    for chatty in ("httpx", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        import uvloop

        uvloop.run(main())
    except SIEError as error:
        log.error("%s %s", error.code, error)
        sys.exit(1)
    except KeyboardInterrupt:
        pass
    sys.exit(0)


def port() -> int:
    """The port to listen on: ``PORT``, as Knative sets it; 8080 when unset."""
    try:
        return int(os.environ.get("PORT", "8080"))
    except ValueError:
        raise ConfigurationError(f"PORT={os.environ['PORT']!r} is not a number.", field="PORT") from None


async def connect(broker: Broker) -> None:
    """Connect, trying again for 30 s: on a platform nobody starts before anybody.

    Raises:
        QueueUnavailableError: still no broker.
    """
    deadline = asyncio.get_running_loop().time() + CONNECT_S
    while True:
        try:
            return await broker.connect()
        except QueueUnavailableError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def serving(app: Any, host: str, port: int) -> AsyncIterator[None]:
    """Serve an ASGI app while the context is open; at its end in-flight requests finish.

    Raises:
        ConfigurationError: the port is taken.
    """
    import uvicorn

    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=120)
    server = uvicorn.Server(config)
    with _bound(host, port) as listening:
        # The steps of `Server.serve()` but for its signal handlers: signals belong to `stop_signal`.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listening])
        task = asyncio.create_task(server.main_loop())
        try:
            yield
        finally:
            server.should_exit = True
            await task
            await server.shutdown(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {error.strerror}.", field="PORT", hint="Choose another port."
        ) from error
