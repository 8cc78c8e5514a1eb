"""How a task is ended: it is told, waited for, and told again when it has not heard.

A cancellation can be lost on its way: nats-py takes one for its own that comes while it flushes. A loop asks
`cancelled` at each turn; `end` is for what then waits without end. Not here: what a task does at its end.
"""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 5.0
"""After what time it is told again. Longer than an end takes that goes well: a request of the broker may take two
seconds, what was taken in is finished within three."""


def cancelled() -> bool:
    """Whether the current task was told to end; loops around broker calls ask before each turn.

    nats-py keeps a cancellation for itself that comes while it flushes: a loop that trusts the exception alone would
    then run for ever.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end(*tasks: asyncio.Future[Any], again_s: float = AGAIN_S) -> None:
    """Cancel tasks and return when they have ended; how they ended is theirs to say.

    Cancelled itself, it tells them once more, waits for them all the same, and raises that then.
    """
    left, hurried = {task for task in tasks if not task.done()}, False
    while left:
        for task in left:
            task.cancel()
        try:
            _, left = await asyncio.wait(left, timeout=again_s)
        except asyncio.CancelledError:
            left, hurried = {task for task in left if not task.done()}, True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio reports it as one that nobody looked at
    if hurried:
        raise asyncio.CancelledError
