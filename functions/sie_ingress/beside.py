"""What would hold up every other request is done beside the event loop. Owns from what size on that is so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 128 * 1024
"""Of a body to read or to write: a millisecond of texts, some of numbers. A thread costs a tenth of one."""


async def beside(size: int, call: Callable[[], T]) -> T:
    """What ``call`` makes of ``size`` bytes: in a thread where they are many, else at once; what it raises."""
    return await asyncio.to_thread(call) if size > LARGE_BYTES else call()
