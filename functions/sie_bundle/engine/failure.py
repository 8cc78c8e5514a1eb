"""Failures of what models and the libraries below them do: whether memory ran out, and what callers can be told.

Not here: what becomes of a batch that failed (``executor``) or of a load (``residency.load_failure``). No torch.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeGuard, TypeVar

T = TypeVar("T")

SHORT = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""What torch's CPU allocator says, and CUDA and its libraries where it is not torch that asks them for memory."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception, of torch, Python or the system, says that memory ran out."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(said in str(error) for said in SHORT))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    )


def tellable(error: BaseException) -> Exception:
    """The failure as a future takes it and as who waits for it survives it.

    An adapter that leaves (``SystemExit``) would end the whole process with the task that hears of it, what a library
    in Rust panics with is no ``Exception``, and asyncio refuses a ``StopIteration``.
    """
    if _is_tellable(error):
        return error
    told = RuntimeError(f"{type(error).__name__}: {error}".rstrip(": "))
    told.__cause__ = error
    return told


def tellably(run: Callable[[], T]) -> T:
    """What ``run`` gives, in whatever thread; it fails with what is `tellable` alone."""
    try:
        return run()
    except BaseException as error:
        if _is_tellable(error):
            raise
        raise tellable(error) from error


def _is_tellable(error: BaseException) -> TypeGuard[Exception]:
    return isinstance(error, Exception) and not isinstance(error, StopIteration)
