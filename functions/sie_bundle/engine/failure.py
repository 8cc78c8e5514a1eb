"""Failures of what models and the libraries below them do: whether memory ran out or the device is lost by them, and
what callers can be told.

Not here: what becomes of a batch that failed (``executor``) or of a load (``residency.load_failure``). Imports torch
only to ask a GPU.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from typing import TypeGuard, TypeVar

T = TypeVar("T")

SHORT = ("can't allocate memory", "CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
"""What torch's allocators say, of which compiled code (``compiled``) passes on the words and not the type; and CUDA and
its libraries where it is not torch that asks them for memory."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception, of torch, Python or the system, says that memory ran out."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(short in said(error) for short in SHORT))
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    )


def is_sound(device: str) -> bool:
    """Whether a device, as torch names it, still computes; to be asked after a failure.

    A kernel that reads where it must not, or memory that fails, breaks a process's CUDA context, and every call after
    that fails likewise until the process ends. Any other failure is one of its own call.
    """
    if device.split(":")[0] != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True


def said(error: BaseException) -> str:
    """Its type and what it says; whatever an adapter raises, even where saying it fails."""
    return "".join(traceback.format_exception_only(error)).strip()


def tellable(error: BaseException) -> Exception:
    """The failure as a future takes it and as who waits for it survives it.

    An adapter that leaves (``SystemExit``) would end the whole process with the task that hears of it, what a library
    in Rust panics with is no ``Exception``, and asyncio refuses a ``StopIteration``.
    """
    if _is_tellable(error):
        return error
    told = RuntimeError(said(error))
    told.__cause__ = error
    return told


def frameless(error: Exception) -> Exception:
    """The same without the frames that it, and all it came of, went through: they hold on to what was in them.

    A request's future holds on to its error, and frames to those that called them, which hold on to the request. Such a
    circle, and a model in it, stays until Python looks for circles.
    """
    left, seen = list[BaseException | None]([error]), set[int]()
    while left:
        if (each := left.pop()) is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return error


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
