"""What would hold up every other request is done beside the event loop. Owns from what size on that is so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 128 * 1024
"""Of a body to read or to write: a millisecond of texts, some of numbers. A thread costs a tenth of one."""
HUGE_BYTES = 1024 * 1024
"""Of which one is read at a time: meanwhile it takes several times its size, and Python's lock."""

_one = ThreadPoolExecutor(1, "one")


async def beside(size: int, call: Callable[[], T]) -> T:
    """What ``call`` makes of ``size`` bytes: in a thread where they are many, else at once; what it raises."""
    if size > HUGE_BYTES:
        return await one_at_a_time(call)
    return await asyncio.to_thread(call) if size > LARGE_BYTES else call()


async def one_at_a_time(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, in the thread that does this and nothing else."""
    return await asyncio.get_running_loop().run_in_executor(_one, call)
