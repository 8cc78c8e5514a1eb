"""Has the process told to stop at the DEAF_AT-th request of the broker, and loses all cancellations from then on.

The worst that a client may do that waits as nats-py does, on Python 3.11 or while it flushes. Python imports it at its
start.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable
from typing import Any

import sie_broker.jetstream.client  # noqa: F401  # it has a choice of its own

AT = int(os.environ["DEAF_AT"])
LATE_S = 0.3
"""How long its answer takes: the process has told its tasks to end by then."""

_asked = 0


async def _wait_for(awaitable: Awaitable[Any], timeout: float | None) -> Any:
    global _asked
    _asked += 1
    if here := _asked == AT:
        os.kill(os.getpid(), signal.SIGTERM)
    answer = asyncio.ensure_future(awaitable)
    until = asyncio.get_running_loop().time() + (LATE_S if here else 0.0)
    while not answer.done() or asyncio.get_running_loop().time() < until:
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait({answer})
                await asyncio.sleep(until - asyncio.get_running_loop().time())
        except asyncio.CancelledError:
            if _asked < AT:
                answer.cancel()
                raise
    return answer.result()


asyncio.wait_for = _wait_for  # type: ignore[assignment]
