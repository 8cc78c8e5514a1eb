"""A stand-in for a bundle, started as a process by these tests: readiness, demand sessions, drain; no model.

``python stand_in_bundle.py``: listens on 127.0.0.1:$PORT. ``START_S`` delays readiness,
``CRASH=1`` makes it die instead, ``IGNORE_SIGTERM=1`` makes it stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from datetime import datetime

ready_at = time.monotonic() + float(os.environ.get("START_S", "0"))
draining = asyncio.Event()
serving: set[asyncio.Task[None]] = set()
log = logging.getLogger("stand-in")


def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    task = asyncio.ensure_future(serve(reader, writer))
    serving.add(task)
    task.add_done_callback(serving.discard)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if head[0].startswith("GET"):
            status, body = (200 if time.monotonic() >= ready_at else 503), {}
        else:
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            until = headers.get("ce-holduntil")
            log.info("asked")
            await hold(reader, datetime.fromisoformat(until).timestamp() - time.time() if until else 0)
            status, body = 200, {"worker": os.getpid(), "draining": draining.is_set()}
        data = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
    writer.close()


async def hold(reader: asyncio.StreamReader, seconds: float) -> None:
    """Until the time is up, the client has gone, or this process drains."""
    ends = [asyncio.create_task(draining.wait()), asyncio.create_task(reader.read(1))]
    done, pending = await asyncio.wait(ends, timeout=max(0, seconds), return_when=asyncio.FIRST_COMPLETED)
    if ends[1] in done:
        log.info("client left")
    for task in pending:
        task.cancel()


async def main() -> None:
    if os.environ.get("CRASH"):
        log.info("first words\nlast words")
        sys.exit(3)
    drain = (lambda: None) if os.environ.get("IGNORE_SIGTERM") else draining.set
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drain)
    server = await asyncio.start_server(accept, "127.0.0.1", int(os.environ["PORT"]))
    log.info("up")
    await draining.wait()
    server.close()
    await asyncio.gather(*serving)


logging.basicConfig(level=logging.INFO, format="%(message)s")
asyncio.run(main())
